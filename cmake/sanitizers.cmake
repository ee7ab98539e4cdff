# What the sanitizer builds need besides the flags that Conan's profiles bring.

include_guard()

if(CMAKE_CXX_FLAGS MATCHES "-fsanitize=")
  # Where each variable lies at each instruction takes the compiler longer to find out than everything else.
  # The checks hide from the compiler what is initialised, so it warns about std::optional and the like (GCC bug 105562).
  add_compile_options(-fno-var-tracking -Wno-maybe-uninitialized)
endif()
if(CMAKE_CXX_FLAGS MATCHES "-fsanitize=address")
  # GCC marks the scope of every register tile of the kernels and then needs many minutes a file (gemm_dot.cc: more than
  # five against one). All other checks hold there, and this one everywhere else.
  file(GLOB kernel_sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/src/thresher/kernels/*.cc")
  set_source_files_properties(${kernel_sources} PROPERTIES COMPILE_OPTIONS -fno-sanitize-address-use-after-scope)
endif()
