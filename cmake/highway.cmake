# Highway out of the archive that conan/recipes/highway pins, for builds that neither Conan nor nox has prepared: `pip
# install .` and `pip install thresher-*.tar.gz`. The archive is taken from THRESHER_SOURCE_MIRROR, then from its
# upstream, and used only with the recipe's SHA-256. FETCHCONTENT_SOURCE_DIR_HIGHWAY names an unpacked copy instead.

include_guard()
include(FetchContent)

file(READ "${PROJECT_SOURCE_DIR}/conan/recipes/highway/all/conandata.yml" recipe)
foreach(key IN ITEMS filename sha256 url)
  if(NOT recipe MATCHES "${key}: \"([^\"]+)\"")
    message(FATAL_ERROR "Expected ${key}: \"...\" in conan/recipes/highway/all/conandata.yml, got none.")
  endif()
  set(highway_${key} "${CMAKE_MATCH_1}")
endforeach()

set(highway_urls "${highway_url}")
set(mirror "$ENV{THRESHER_SOURCE_MIRROR}")
if(mirror MATCHES "^file:")
  set(highway_urls "${mirror}/${highway_filename}") # CMake takes no file beside other addresses
elseif(NOT mirror STREQUAL "")
  list(PREPEND highway_urls "${mirror}/${highway_filename}")
endif()
list(JOIN highway_urls " and " places)
message(STATUS "Highway: building it from ${highway_filename} (${places}). If it cannot be had there, set "
               "THRESHER_SOURCE_MIRROR to the address of a folder that holds this file, or pass "
               "-DFETCHCONTENT_SOURCE_DIR_HIGHWAY=FOLDER, or use `nox -s build`, which looks at more places.")

# As in the recipe; as variables, so that they stay out of the options of this project.
set(CMAKE_POLICY_DEFAULT_CMP0077 NEW)
foreach(name IN ITEMS BUILD_TESTING HWY_ENABLE_TESTS HWY_ENABLE_EXAMPLES HWY_ENABLE_CONTRIB HWY_ENABLE_INSTALL)
  set(${name} OFF)
endforeach()
set(HWY_FORCE_STATIC_LIBS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)

FetchContent_Declare(highway URL ${highway_urls} URL_HASH "SHA256=${highway_sha256}" DOWNLOAD_EXTRACT_TIMESTAMP OFF
                     DOWNLOAD_NO_PROGRESS ON TLS_VERIFY ON EXCLUDE_FROM_ALL)
FetchContent_MakeAvailable(highway)
if(NOT TARGET hwy::hwy)
  add_library(hwy::hwy ALIAS hwy)
endif()
