# `cmake --install`: the shared library (component kvik_runtime); the public headers, a CMake package
# and a pkg-config file (component kvik_dev). Both descriptions find the prefix from where they lie, so
# that `cmake --install --prefix`, DESTDIR and a later move all work.
include(CMakePackageConfigHelpers)

install(TARGETS kvik EXPORT kvikTargets
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT kvik_runtime
                NAMELINK_COMPONENT kvik_dev)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/kvik DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
        COMPONENT kvik_dev FILES_MATCHING PATTERN "*.h")
install(EXPORT kvikTargets NAMESPACE kvik:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/kvik
        COMPONENT kvik_dev)

configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/kvikConfig.cmake.in
                              ${PROJECT_BINARY_DIR}/kvikConfig.cmake
                              INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/kvik)
# 0.x releases promise nothing across minor versions.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/kvikConfigVersion.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/kvikConfig.cmake ${PROJECT_BINARY_DIR}/kvikConfigVersion.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/kvik COMPONENT kvik_dev)

# The way up from the folder of the .pc file depends on the depth of the library folder (lib, or
# lib/x86_64-linux-gnu). An absolute folder is taken as it is: nothing relative leads to it.
set(KVIK_PC_PREFIX ${CMAKE_INSTALL_PREFIX})
set(KVIK_PC_LIBDIR ${CMAKE_INSTALL_LIBDIR})
if(NOT IS_ABSOLUTE ${CMAKE_INSTALL_LIBDIR})
  file(RELATIVE_PATH up /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
  string(REGEX REPLACE "/$" "" up ${up})
  set(KVIK_PC_PREFIX "\${pcfiledir}/${up}")
  set(KVIK_PC_LIBDIR "\${prefix}/${CMAKE_INSTALL_LIBDIR}")
endif()
set(KVIK_PC_INCLUDEDIR ${CMAKE_INSTALL_INCLUDEDIR})
if(NOT IS_ABSOLUTE ${CMAKE_INSTALL_INCLUDEDIR})
  set(KVIK_PC_INCLUDEDIR "\${prefix}/${CMAKE_INSTALL_INCLUDEDIR}")
endif()
configure_file(${CMAKE_CURRENT_LIST_DIR}/kvik.pc.in ${PROJECT_BINARY_DIR}/kvik.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/kvik.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig
        COMPONENT kvik_dev)
