# One GoogleTest binary of everything under tests/cpp; ctest sees each case.

include_guard()

enable_testing()
include(GoogleTest)
enable_language(C) # the example tool of thresher/pti.h
file(GLOB_RECURSE test_sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/tests/cpp/*.cc"
     "${PROJECT_SOURCE_DIR}/tests/cpp/*.c")
# The fuzz targets, whose kept inputs are replayed. What is planted for their self-check stays out.
file(GLOB fuzz_sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/tests/fuzz/*.cc")
list(APPEND test_sources ${fuzz_sources})
# What compiles sooner than it runs: most tests take milliseconds, however they are compiled.
set(test_optimisation $<$<CONFIG:Release>:-O1>)

# Reads the headers that nearly every source of a target includes once for all of them. Only of tests: clang-tidy, which
# reads the engine's own sources, cannot use what GCC has precompiled. ccache has to be told that it may (its manual,
# "Precompiled headers"), and the flags that are no macros' business must be seen by it in what is preprocessed.
function(thresher_precompile target)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    return()
  endif()
  foreach(header IN LISTS ARGN)
    target_precompile_headers(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:<${header}$<ANGLE-R>>")
  endforeach()
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fpch-preprocess>)
  if(ccache_program)
    set_target_properties(${target} PROPERTIES CXX_COMPILER_LAUNCHER
                          "${CMAKE_COMMAND};-E;env;CCACHE_SLOPPINESS=pch_defines,time_macros;${ccache_program}")
  endif()
endfunction()

# The emulated device: in the tests, and as a library that the engine opens like that of a real one (tests/cuda,
# --device-library). With it the part of the CUDA library that needs no CUDA, beyond what is in headers.
set(emulator_sources "${PROJECT_SOURCE_DIR}/tests/cpp/cuda/emulated_library.cc"
                     "${PROJECT_SOURCE_DIR}/tests/cpp/cuda/emulator.cc")
add_library(thresher_emulator OBJECT ${emulator_sources} "${PROJECT_SOURCE_DIR}/src/thresher/cuda/activity.cc"
            "${PROJECT_SOURCE_DIR}/src/thresher/cuda/cudnn.cc")
thresher_target_flags(thresher_emulator)
set_target_properties(thresher_emulator PROPERTIES POSITION_INDEPENDENT_CODE ON)
target_compile_options(thresher_emulator PRIVATE $<$<CONFIG:Release>:-O2>)
target_include_directories(thresher_emulator PRIVATE "${PROJECT_SOURCE_DIR}/tests/cpp")
target_link_libraries(thresher_emulator PRIVATE thresher_core)
add_library(thresher_emulated_device MODULE $<TARGET_OBJECTS:thresher_emulator>)
thresher_target_flags(thresher_emulated_device)
target_link_libraries(thresher_emulated_device PRIVATE thresher_core)

if(test_sources)
  list(REMOVE_ITEM test_sources ${emulator_sources})
  add_executable(thresher_tests ${test_sources} $<TARGET_OBJECTS:thresher_emulator>)
  thresher_target_flags(thresher_tests)
  target_compile_options(thresher_tests PRIVATE ${test_optimisation})
  target_include_directories(thresher_tests PRIVATE "${PROJECT_SOURCE_DIR}/tests/cpp" "${PROJECT_SOURCE_DIR}/tests")
  target_compile_definitions(thresher_tests PRIVATE THRESHER_TEST_DATA="${PROJECT_SOURCE_DIR}/tests")
  target_link_libraries(thresher_tests PRIVATE thresher_core GTest::gmock GTest::gtest_main)
  thresher_precompile(thresher_tests gmock/gmock.h gtest/gtest.h algorithm atomic cmath cstdint cstring functional limits
                      memory random string thread vector)
  # With it, GCC 12 takes a copy inside its own std::string for one beyond an array there (GCC bug 105651 again).
  set_source_files_properties("${PROJECT_SOURCE_DIR}/tests/cpp/graph/parser_test.cc" PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
  gtest_discover_tests(thresher_tests DISCOVERY_MODE PRE_TEST)
endif()

# Faults on purpose, in a program and in a library that Python loads: the self-check of `nox -s sanitize`.
add_executable(planted_faults EXCLUDE_FROM_ALL "${PROJECT_SOURCE_DIR}/tests/sanitizers/planted_faults.cc")
target_compile_definitions(planted_faults PRIVATE THRESHER_PLANTED_PROGRAM)
add_library(planted_faults_library MODULE EXCLUDE_FROM_ALL "${PROJECT_SOURCE_DIR}/tests/sanitizers/planted_faults.cc")
set_target_properties(planted_faults_library PROPERTIES OUTPUT_NAME planted_faults)
foreach(target planted_faults planted_faults_library)
  thresher_target_flags(${target})
  target_link_libraries(${target} PRIVATE Threads::Threads)
endforeach()
