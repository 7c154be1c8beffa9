# kvik_test(NAME LABELS label... SOURCES file... [LIBS lib...]): one GoogleTest program; each of its tests
# becomes a CTest test "NAME/Suite.Test" with the labels.
function(kvik_test name)
  cmake_parse_arguments(arg "" "" "LABELS;SOURCES;LIBS" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE kvik_internal GTest::gmock GTest::gtest_main ${arg_LIBS})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
  gtest_discover_tests(${name} TEST_PREFIX "${name}/" DISCOVERY_TIMEOUT 60
                       PROPERTIES LABELS "${arg_LABELS}" TIMEOUT 600)
endfunction()

# kvik_unit_tests(LAYER): all src/LAYER/**/*_test.cc as one program <LAYER>_test with label "unit".
function(kvik_unit_tests layer)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/${layer}/*_test.cc)
  if(sources)
    kvik_test(${layer}_test LABELS unit SOURCES ${sources} LIBS ${ARGN})
  endif()
endfunction()
