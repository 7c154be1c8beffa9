# `cmake --install`: the shared library, the public headers, a CMake package and a pkg-config file.
include(CMakePackageConfigHelpers)

install(TARGETS kvik EXPORT kvikTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/kvik
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
install(EXPORT kvikTargets NAMESPACE kvik:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/kvik)

configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/kvikConfig.cmake.in
                              ${PROJECT_BINARY_DIR}/kvikConfig.cmake
                              INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/kvik)
# 0.x releases promise nothing across minor versions.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/kvikConfigVersion.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/kvikConfig.cmake ${PROJECT_BINARY_DIR}/kvikConfigVersion.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/kvik)

configure_file(${CMAKE_CURRENT_LIST_DIR}/kvik.pc.in ${PROJECT_BINARY_DIR}/kvik.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/kvik.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
