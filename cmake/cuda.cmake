# libthresher_cuda.so: the kernels for NVIDIA devices behind thresher/device_api.h. The engine opens it at run time, so
# nothing else links CUDA. It holds the CUDA runtime; the driver and cuBLASLt are opened when they are used.

include_guard()

if(CMAKE_VERSION VERSION_LESS 3.31)
  message(FATAL_ERROR "THRESHER_BUILD_CUDA: expected CMake 3.31 or newer, which knows the folders of CUDA 13; got "
                      "${CMAKE_VERSION}. `pip install 'cmake>=3.31'` brings it, and `nox -s build -- --platform cuda` "
                      "uses it by itself.")
endif()

# Real code for Ampere, Ada, Hopper and Blackwell; what comes later compiles the last one's PTX when it is loaded.
set(CMAKE_CUDA_ARCHITECTURES "80-real;89-real;90-real;100" CACHE STRING "What the CUDA kernels are compiled for.")
include(CheckLanguage)
check_language(CUDA)
if(NOT CMAKE_CUDA_COMPILER)
  message(FATAL_ERROR "THRESHER_BUILD_CUDA: expected nvcc of CUDA 13, got none. Set CUDACXX to it, or let "
                      "`nox -s build -- --platform cuda` install it (requirements/cuda.txt, docs/building.md).")
endif()
enable_language(CUDA)
if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 13)
  message(FATAL_ERROR "THRESHER_BUILD_CUDA: expected nvcc of CUDA 13, got ${CMAKE_CUDA_COMPILER_VERSION} at "
                      "${CMAKE_CUDA_COMPILER}. Set CUDACXX to a newer one (docs/building.md).")
endif()
find_package(CUDAToolkit REQUIRED)

file(GLOB cuda_sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/src/thresher/cuda/*.cc"
     "${PROJECT_SOURCE_DIR}/src/thresher/cuda/*.cu")
find_path(THRESHER_CUBLASLT_INCLUDE cublasLt.h HINTS ${CUDAToolkit_INCLUDE_DIRS} NO_CACHE)
if(NOT THRESHER_CUBLASLT_INCLUDE)
  list(FILTER cuda_sources EXCLUDE REGEX "/cublaslt_check\\.cc$")
endif()

# CUPTI comes with a toolkit or a package of its own.
find_path(THRESHER_CUPTI_INCLUDE cupti.h HINTS ${CUDAToolkit_INCLUDE_DIRS}
          "${CUDAToolkit_TARGET_DIR}/extras/CUPTI/include" NO_CACHE)
if(NOT THRESHER_CUPTI_INCLUDE)
  list(FILTER cuda_sources EXCLUDE REGEX "/activity_check\\.cc$")
endif()
# cuDNN comes with a package of its own; building needs none.
find_path(THRESHER_CUDNN_INCLUDE cudnn.h HINTS ${CUDAToolkit_INCLUDE_DIRS} NO_CACHE)
if(NOT THRESHER_CUDNN_INCLUDE)
  list(FILTER cuda_sources EXCLUDE REGEX "/cudnn_check\\.cc$")
endif()
# What the engine knows of NVTX is compared with its header, which comes with the toolkit.
find_path(THRESHER_NVTX_INCLUDE nvtx3/nvToolsExt.h HINTS ${CUDAToolkit_INCLUDE_DIRS} NO_CACHE)
if(THRESHER_NVTX_INCLUDE)
  add_library(thresher_nvtx_check OBJECT "${PROJECT_SOURCE_DIR}/src/thresher/profile/nvtx_check.cc")
  target_compile_features(thresher_nvtx_check PRIVATE cxx_std_20)
  target_include_directories(thresher_nvtx_check PRIVATE "${PROJECT_SOURCE_DIR}/src")
  target_include_directories(thresher_nvtx_check SYSTEM PRIVATE "${THRESHER_NVTX_INCLUDE}")
endif()

add_library(thresher_cuda SHARED ${cuda_sources})
thresher_target_flags(thresher_cuda)
target_compile_features(thresher_cuda PRIVATE cuda_std_20)
# A twelfth of the size, and seconds more to build; the driver unpacks what it loads.
target_compile_options(thresher_cuda PRIVATE "$<$<COMPILE_LANGUAGE:CUDA>:--compress-mode=size>")
target_include_directories(thresher_cuda PRIVATE "${PROJECT_SOURCE_DIR}/src")
if(THRESHER_CUBLASLT_INCLUDE)
  target_include_directories(thresher_cuda SYSTEM PRIVATE "${THRESHER_CUBLASLT_INCLUDE}")
endif()
if(THRESHER_CUPTI_INCLUDE)
  target_include_directories(thresher_cuda SYSTEM PRIVATE "${THRESHER_CUPTI_INCLUDE}")
endif()
if(THRESHER_CUDNN_INCLUDE)
  target_include_directories(thresher_cuda SYSTEM PRIVATE "${THRESHER_CUDNN_INCLUDE}")
endif()
list(JOIN CMAKE_CUDA_ARCHITECTURES ", " architectures)
set_source_files_properties("${PROJECT_SOURCE_DIR}/src/thresher/cuda/library.cc" PROPERTIES COMPILE_DEFINITIONS
  "THRESHER_VERSION=\"${THRESHER_VERSION_STRING}\";THRESHER_CUDA_ARCHITECTURES=\"${architectures}\"")
target_link_libraries(thresher_cuda PRIVATE CUDA::cudart_static ${CMAKE_DL_LIBS})
set_target_properties(thresher_cuda PROPERTIES CUDA_RUNTIME_LIBRARY Static CUDA_VISIBILITY_PRESET hidden
                      # Beside this package: what nvidia-cublas and nvidia-cuda-cupti install.
                      SKIP_BUILD_RPATH ON INSTALL_RPATH "$ORIGIN/../nvidia/cu13/lib")
# Without symbols before the build id is computed: nvcc puts a name with its process id among them.
target_link_options(thresher_cuda PRIVATE -Wl,--exclude-libs,ALL -Wl,--gc-sections -Wl,--strip-all)
if(THRESHER_STATIC_RUNTIME)
  target_link_options(thresher_cuda PRIVATE -static-libstdc++)
endif()
install(TARGETS thresher_cuda LIBRARY DESTINATION thresher_cuda COMPONENT cuda)
