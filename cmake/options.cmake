# Every option of the build, each with one sentence. A THRESHER_* cache variable that is not declared here stops the
# configure step, so that a mistyped option cannot be ignored in silence.

include_guard()

set(THRESHER_KNOWN_OPTIONS "")

macro(thresher_option name default sentence)
  option(${name} "${sentence}" ${default})
  list(APPEND THRESHER_KNOWN_OPTIONS ${name})
endmacro()

thresher_option(THRESHER_BUILD_PYTHON ON "Build the Python extension module thresher._engine.")
thresher_option(THRESHER_BUILD_PACKAGE OFF "Build the C++ library, if nothing else does.")
thresher_option(THRESHER_BUILD_TESTS OFF "Build thresher_tests, the GoogleTest binary of all C++ tests.")
thresher_option(THRESHER_BUILD_BENCHMARKS OFF "Build the kernel benchmarks of bench/kernels.")
thresher_option(THRESHER_BUILD_FUZZERS OFF "Build the fuzz targets of tests/fuzz; needs Clang.")
thresher_option(THRESHER_BUILD_CUDA OFF "Build libthresher_cuda.so, the kernels for NVIDIA devices; needs nvcc.")
thresher_option(THRESHER_WERROR ON "Treat warnings of GCC 12 and 13 as errors.")
thresher_option(THRESHER_FETCH_HIGHWAY OFF "Build Highway from its pinned archive where no CMake package has it.")
thresher_option(THRESHER_CCACHE ON "Compile through ccache when it is installed.")
thresher_option(THRESHER_STATIC_RUNTIME ON "Link libstdc++ into the extension module.")

set(THRESHER_TORCH_SHIMS "" CACHE STRING
    "Build the PyTorch profiler shim for these: Python interpreters that have PyTorch, or folders of PyTorch itself.")
list(APPEND THRESHER_KNOWN_OPTIONS THRESHER_TORCH_SHIMS)

get_cmake_property(cached CACHE_VARIABLES)
foreach(name IN LISTS cached)
  if(name MATCHES "^THRESHER_" AND NOT name IN_LIST THRESHER_KNOWN_OPTIONS)
    list(JOIN THRESHER_KNOWN_OPTIONS ", " known)
    message(FATAL_ERROR "Unknown option ${name}. Known options: ${known}. Remove -D${name}=... from the command line, "
                        "or -U${name} where an older configure step left it in the cache.")
  endif()
endforeach()

if(NOT (THRESHER_BUILD_PYTHON OR THRESHER_BUILD_PACKAGE OR THRESHER_BUILD_TESTS OR THRESHER_BUILD_BENCHMARKS OR
        THRESHER_BUILD_FUZZERS OR THRESHER_BUILD_CUDA))
  message(FATAL_ERROR "THRESHER_BUILD_PYTHON, THRESHER_BUILD_PACKAGE, THRESHER_BUILD_TESTS, THRESHER_BUILD_BENCHMARKS, "
                      "THRESHER_BUILD_FUZZERS and THRESHER_BUILD_CUDA are all OFF, so there is nothing to build. Turn one of "
                      "them ON.")
endif()
