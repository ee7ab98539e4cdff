# Compiler flags of Thresher's own targets, and the compiler launcher.

include_guard()

# Before anything is looked for: nothing else could be built with it either.
if(THRESHER_BUILD_FUZZERS AND NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  message(FATAL_ERROR "THRESHER_BUILD_FUZZERS: expected Clang, whose libFuzzer runs the targets; got "
                      "${CMAKE_CXX_COMPILER_ID} (${CMAKE_CXX_COMPILER}). Configure an empty build folder with "
                      "-DCMAKE_CXX_COMPILER=clang++; `scripts/install_build_deps.sh --fuzz` installs it, and "
                      "`nox -s fuzz` does all of this.")
endif()

if(THRESHER_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  find_program(ccache_program ccache)
  mark_as_advanced(ccache_program)
  if(ccache_program)
    set(CMAKE_CXX_COMPILER_LAUNCHER "${ccache_program}")
    set(CMAKE_CUDA_COMPILER_LAUNCHER "${ccache_program}")
  endif()
endif()

# Warnings are errors with the compilers that the tests are run with. A newer one may warn about what nobody has seen
# yet, and whoever builds with it could not go on.
set(warnings_are_errors OFF)
if(THRESHER_WERROR AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 14)
  set(warnings_are_errors ON)
endif()

# No -march here: Highway compiles each kernel once per instruction set and chooses at run time, so that one binary runs
# on every machine. -fno-math-errno lets the compiler inline sqrt and friends, whose errno nobody reads.
function(thresher_target_flags target)
  target_compile_features(${target} PUBLIC cxx_std_20)
  set(flags -Wall -Wextra -fno-math-errno)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    # GCC 12 reports overlapping copies inside its own std::string operator+ (GCC bug 105651).
    list(APPEND flags -Wno-restrict)
  endif()
  if(warnings_are_errors)
    list(APPEND flags -Werror)
  endif()
  # nvcc hands them to the host's compiler; what it warns about itself is an error all the same.
  list(JOIN flags "," joined)
  target_compile_options(${target} PRIVATE "$<$<NOT:$<COMPILE_LANGUAGE:CUDA>>:${flags}>"
                                           "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=${joined}>")
  if(warnings_are_errors)
    target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CUDA>:--Werror=all-warnings>")
  endif()
  set_target_properties(${target} PROPERTIES CXX_EXTENSIONS OFF POSITION_INDEPENDENT_CODE ON
                                             CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
endfunction()
