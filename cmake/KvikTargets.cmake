# Options that every target of the project shares.
find_package(Threads REQUIRED)

add_library(kvik_options INTERFACE)
target_compile_features(kvik_options INTERFACE cxx_std_20)
# Results must not depend on whether a compiler fuses a*b+c: kernels ask for fma where they want it.
target_compile_options(kvik_options INTERFACE -ffp-contract=off -Wall -Wextra -Wshadow -Wconversion
                                              -Wno-sign-conversion -Wnon-virtual-dtor)
# gcc 12 warns of a copy onto itself inside std::string where there is none (its bug 105651).
target_compile_options(kvik_options INTERFACE $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>)
if(KVIK_WERROR)
  target_compile_options(kvik_options INTERFACE -Werror)
endif()
if(KVIK_SANITIZE)
  target_compile_options(kvik_options INTERFACE -fsanitize=${KVIK_SANITIZE} -fno-omit-frame-pointer
                                                -fno-sanitize-recover=all)
  target_link_options(kvik_options INTERFACE -fsanitize=${KVIK_SANITIZE})
endif()
target_link_libraries(kvik_options INTERFACE Threads::Threads)

set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
