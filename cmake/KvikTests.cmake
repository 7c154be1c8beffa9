# Helpers to register tests. Labels: unit (fast, of one folder), thread (also run under ThreadSanitizer),
# golden (outputs of independent programs), model (the same for real models), install, fuzz (replays a
# corpus), nightly (too long for every commit). For each label L of a test program,
# `cmake --build --target tests_L` builds what its tests need.

# Makes the target part of tests_LABEL for each label.
function(kvik_label_target name)
  foreach(label ${ARGN})
    if(NOT TARGET tests_${label})
      add_custom_target(tests_${label})
    endif()
    add_dependencies(tests_${label} ${name})
  endforeach()
endfunction()

# kvik_test(NAME LABELS label... SOURCES file... [LIBS lib...]): one GoogleTest program; each of its
# tests becomes a CTest test "NAME/Suite.Test" with the labels.
function(kvik_test name)
  cmake_parse_arguments(arg "" "" "LABELS;SOURCES;LIBS" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE kvik_internal GTest::gmock GTest::gtest_main ${arg_LIBS})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
  kvik_label_target(${name} ${arg_LABELS})
  if(CMAKE_CXX_CLANG_TIDY)
    # The path-sensitive analysis of GoogleTest's macros takes minutes and finds nothing.
    set_target_properties(${name} PROPERTIES CXX_CLANG_TIDY
                                             "${CMAKE_CXX_CLANG_TIDY};--checks=-clang-analyzer-*")
  endif()
  gtest_discover_tests(${name} TEST_PREFIX "${name}/" TEST_LIST ${name}_tests DISCOVERY_TIMEOUT 60
                       PROPERTIES TIMEOUT 600)
  # Discovery flattens lists, so labels are set from a script that CTest reads after it.
  set(labels_file ${CMAKE_CURRENT_BINARY_DIR}/${name}_labels.cmake)
  file(WRITE ${labels_file}
       "if(${name}_tests)\n  set_tests_properties(\${${name}_tests} PROPERTIES LABELS \"${arg_LABELS}\")\nendif()\n")
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES ${labels_file})
endfunction()

# kvik_unit_tests(LAYER [lib...]): all src/LAYER/**/*_test.cc as one program <LAYER>_test with label
# "unit"; those named *_thread_test.cc or thread_*_test.cc as one program <LAYER>_thread_test with the
# labels "unit" and "thread", which ThreadSanitizer sees too.
function(kvik_unit_tests layer)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/${layer}/*_test.cc)
  set(threaded ${sources})
  list(FILTER threaded INCLUDE REGEX "/(thread_[^/]*|[^/]*_thread)_test\\.cc$")
  if(threaded)
    list(REMOVE_ITEM sources ${threaded})
    kvik_test(${layer}_thread_test LABELS unit thread SOURCES ${threaded} LIBS ${ARGN})
  endif()
  if(sources)
    kvik_test(${layer}_test LABELS unit SOURCES ${sources} LIBS ${ARGN})
  endif()
endfunction()
