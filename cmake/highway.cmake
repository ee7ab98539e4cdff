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

# By hand: FetchContent's own download ends in a page of its internals, without what to do about it.
function(thresher_download_highway archive)
  set(urls "${highway_url}")
  if(NOT "$ENV{THRESHER_SOURCE_MIRROR}" STREQUAL "")
    list(PREPEND urls "$ENV{THRESHER_SOURCE_MIRROR}/${highway_filename}")
  endif()
  foreach(url IN LISTS urls)
    message(STATUS "Highway: taking ${url}")
    file(DOWNLOAD "${url}" "${archive}" STATUS status INACTIVITY_TIMEOUT 60 TLS_VERIFY ON)
    list(GET status 0 code)
    if(code EQUAL 0)
      file(SHA256 "${archive}" found)
      if(found STREQUAL highway_sha256)
        return()
      endif()
      set(problem "its hash is ${found}, expected ${highway_sha256}")
    else()
      list(GET status 1 problem)
    endif()
    file(REMOVE "${archive}")
    string(APPEND attempts "\n  ${url}: ${problem}")
  endforeach()
  message(FATAL_ERROR "Expected ${highway_filename}, the sources of Highway; got none:${attempts}\n"
    "Do one of these:\n"
    "  set THRESHER_SOURCE_MIRROR to the address of a folder that holds this file (https:// or file://);\n"
    "  unpack it and run `pip install . --config-settings=cmake.define.FETCHCONTENT_SOURCE_DIR_HIGHWAY=FOLDER`;\n"
    "  run `nox -s build` in a clone, which looks at more places, and install the wheel in dist/.")
endfunction()

set(highway_archive "${CMAKE_BINARY_DIR}/${highway_filename}")
if(NOT FETCHCONTENT_SOURCE_DIR_HIGHWAY AND NOT EXISTS "${highway_archive}")
  thresher_download_highway("${highway_archive}")
endif()

# As in the recipe; as variables, so that they stay out of the options of this project.
set(CMAKE_POLICY_DEFAULT_CMP0077 NEW)
foreach(name IN ITEMS BUILD_TESTING HWY_ENABLE_TESTS HWY_ENABLE_EXAMPLES HWY_ENABLE_CONTRIB HWY_ENABLE_INSTALL)
  set(${name} OFF)
endforeach()
set(HWY_FORCE_STATIC_LIBS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)

FetchContent_Declare(highway URL "${highway_archive}" URL_HASH "SHA256=${highway_sha256}" DOWNLOAD_EXTRACT_TIMESTAMP OFF
                     EXCLUDE_FROM_ALL)
FetchContent_MakeAvailable(highway)
if(NOT TARGET hwy::hwy)
  add_library(hwy::hwy ALIAS hwy)
endif()
