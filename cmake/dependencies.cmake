# Finds what Conan installed and says how to install what is missing.

include_guard()

macro(thresher_find_package name target)
  if(NOT TARGET ${target})
    find_package(${name} CONFIG QUIET)
  endif()
  if(NOT TARGET ${target})
    message(FATAL_ERROR "Expected the CMake package ${name} with the target ${target}; got none. `nox -s build` "
                        "installs it through Conan; for a build by hand run `nox -s deps` and configure with "
                        "`cmake --preset x86-release` (docs/building.md).")
  endif()
endmacro()

find_package(Threads REQUIRED)
if(THRESHER_FETCH_HIGHWAY)
  find_package(hwy 1.2 CONFIG QUIET)
  if(NOT TARGET hwy::hwy)
    include(cmake/highway.cmake)
  endif()
endif()
thresher_find_package(hwy hwy::hwy)
if(THRESHER_BUILD_TESTS)
  thresher_find_package(GTest GTest::gmock)
endif()
