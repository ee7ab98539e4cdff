# Fuzz targets of the C++ parsers: one program of libFuzzer for each source in tests/fuzz. `nox -s fuzz` builds and runs
# them in a build folder of their own.

include_guard()

# The engine is watched, too: AddressSanitizer, undefined behaviour, and the edges that libFuzzer steers by.
set(THRESHER_FUZZ_FLAGS -O1 -g -UNDEBUG -fno-omit-frame-pointer -fsanitize=address,undefined
                        -fno-sanitize-recover=all)
# One instruction set, the compiler's own: kernels for several would take most of the build.
target_compile_definitions(thresher_core PUBLIC HWY_COMPILE_ONLY_STATIC)
target_compile_options(thresher_core PRIVATE ${THRESHER_FUZZ_FLAGS} -fsanitize=fuzzer-no-link)

# As in cmake/sanitizers.cmake: marking the scope of every register tile takes the compiler many minutes.
file(GLOB kernel_sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/src/thresher/kernels/*.cc")
set_source_files_properties(${kernel_sources} PROPERTIES COMPILE_OPTIONS -fno-sanitize-address-use-after-scope)

function(thresher_fuzz_target name source)
  add_executable(${name} "${source}")
  thresher_target_flags(${name})
  target_include_directories(${name} PRIVATE "${PROJECT_SOURCE_DIR}/tests")
  target_compile_definitions(${name} PRIVATE THRESHER_LIBFUZZER)
  target_compile_options(${name} PRIVATE ${THRESHER_FUZZ_FLAGS} -fsanitize=fuzzer)
  target_link_options(${name} PRIVATE -fsanitize=fuzzer,address,undefined)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/fuzz")
endfunction()

file(GLOB fuzz_sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/tests/fuzz/*.cc")
foreach(source IN LISTS fuzz_sources)
  cmake_path(GET source STEM name)
  thresher_fuzz_target(fuzz_${name} "${source}")
  target_link_libraries(fuzz_${name} PRIVATE thresher_core)
endforeach()

# What the self-check looks for; they need nothing of the engine.
file(GLOB planted_sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/tests/fuzz/planted/*.cc")
foreach(source IN LISTS planted_sources)
  cmake_path(GET source STEM name)
  thresher_fuzz_target(fuzz_planted_${name} "${source}")
endforeach()
