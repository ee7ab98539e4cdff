# One GoogleTest binary of everything under tests/cpp; ctest sees each case.

include_guard()

enable_testing()
include(GoogleTest)
enable_language(C) # the example tool of thresher/pti.h
file(GLOB_RECURSE test_sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/tests/cpp/*.cc"
     "${PROJECT_SOURCE_DIR}/tests/cpp/*.c")
if(test_sources)
  add_executable(thresher_tests ${test_sources})
  thresher_target_flags(thresher_tests)
  target_include_directories(thresher_tests PRIVATE "${PROJECT_SOURCE_DIR}/tests/cpp")
  target_compile_definitions(thresher_tests PRIVATE THRESHER_TEST_DATA="${PROJECT_SOURCE_DIR}/tests")
  target_link_libraries(thresher_tests PRIVATE thresher_core GTest::gmock GTest::gtest_main)
  gtest_discover_tests(thresher_tests DISCOVERY_MODE PRE_TEST)
endif()

# The emulated device as a library that the engine opens like that of a real one (tests/cuda, --device-library).
add_library(thresher_emulated_device MODULE "${PROJECT_SOURCE_DIR}/tests/cpp/cuda/emulated_library.cc"
            "${PROJECT_SOURCE_DIR}/tests/cpp/cuda/emulator.cc")
thresher_target_flags(thresher_emulated_device)
target_include_directories(thresher_emulated_device PRIVATE "${PROJECT_SOURCE_DIR}/tests/cpp")
target_link_libraries(thresher_emulated_device PRIVATE thresher_core)
