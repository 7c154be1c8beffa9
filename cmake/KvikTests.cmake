# Helpers to register tests. Labels: unit (fast, of one folder), thread (also run under
# ThreadSanitizer), install, fuzz (replays a corpus), nightly (too long for every commit). For each label
# L of a test program, `cmake --build --target tests_L` builds what its tests need.

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
  # A list inside a property of a discovered test needs its semicolons kept through two scripts.
  string(REPLACE ";" "\\;" labels "${arg_LABELS}")
  gtest_discover_tests(${name} TEST_PREFIX "${name}/" DISCOVERY_TIMEOUT 60
                       PROPERTIES LABELS "${labels}" TIMEOUT 600)
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
