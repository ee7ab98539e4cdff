# Each file of bench/kernels is a program of its own; thresher_benchmarks builds them all.

include_guard()

add_custom_target(thresher_benchmarks)
file(GLOB benchmark_sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/bench/kernels/*_bench.cc")
foreach(source IN LISTS benchmark_sources)
  cmake_path(GET source STEM name)
  add_executable(${name} ${source})
  thresher_target_flags(${name})
  # foreach_target.h includes the source again, by its bare name.
  target_include_directories(${name} PRIVATE "${PROJECT_SOURCE_DIR}/bench/kernels")
  target_link_libraries(${name} PRIVATE thresher_core)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/bench")
  add_dependencies(thresher_benchmarks ${name})
endforeach()
