# The version is written once, in pyproject.toml.

include_guard()

set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${CMAKE_CURRENT_LIST_DIR}/../pyproject.toml")
file(STRINGS "${CMAKE_CURRENT_LIST_DIR}/../pyproject.toml" line REGEX "^version = \"[^\"]+\"$" LIMIT_COUNT 1)
if(NOT line MATCHES "^version = \"([0-9]+\\.[0-9]+\\.[0-9]+)([^\"]*)\"$")
  message(FATAL_ERROR "pyproject.toml has no line of the form: version = \"1.2.3\". Found: '${line}'.")
endif()
set(THRESHER_RELEASE "${CMAKE_MATCH_1}")
set(THRESHER_VERSION_STRING "${CMAKE_MATCH_1}${CMAKE_MATCH_2}")
