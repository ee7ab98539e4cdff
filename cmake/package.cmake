# The C++ package: everything that `cmake --install --component cpp` leaves. A program needs nothing beside it but a C++20
# compiler. `nox -s build -- --package` makes an archive of it.

include_guard()
include(CMakePackageConfigHelpers)

# What programs may include. Each includes headers of this list and of C++ only; tests/package compiles them from here.
set(package_headers
    base/dtype.h
    base/status.h
    base/tensor.h
    base/version.h
    base/view.h
    operator_package.h
    pti.h
    run/model_file.h)

# Sets `result` to the library files of a target: its own, or those an interface target stands for.
function(thresher_library_files target result)
  get_target_property(type ${target} TYPE)
  if(NOT type STREQUAL "INTERFACE_LIBRARY")
    set(${result} "$<TARGET_FILE:${target}>" PARENT_SCOPE)
    return()
  endif()
  set(files "")
  get_target_property(links ${target} INTERFACE_LINK_LIBRARIES)
  string(REGEX MATCHALL "[A-Za-z0-9_]+::[A-Za-z0-9_]+" names "${links}")
  foreach(name IN LISTS names)
    if(TARGET ${name})
      thresher_library_files(${name} more)
      list(APPEND files ${more})
    endif()
  endforeach()
  set(${result} "${files}" PARENT_SCOPE)
endfunction()

thresher_library_files(hwy::hwy highway_files)
list(LENGTH highway_files count)
if(NOT count EQUAL 1)
  message(FATAL_ERROR "Expected one library file behind hwy::hwy for the C++ package, got '${highway_files}'. Let "
                      "`nox -s deps` install Highway.")
endif()

set_target_properties(thresher_core PROPERTIES OUTPUT_NAME thresher)
install(TARGETS thresher_core ARCHIVE DESTINATION lib COMPONENT cpp)
# In a folder of its own, so that it is not taken for a Highway that the program chose itself.
install(FILES "${highway_files}" DESTINATION lib/thresher RENAME libhwy.a COMPONENT cpp)
foreach(header IN LISTS package_headers)
  cmake_path(GET header PARENT_PATH folder)
  install(FILES "${PROJECT_SOURCE_DIR}/src/thresher/${header}" DESTINATION "include/thresher/${folder}" COMPONENT cpp)
endforeach()
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" "${PROJECT_SOURCE_DIR}/licenses/highway.txt"
        DESTINATION share/licenses/thresher COMPONENT cpp)

# The program that gives a language model a recorded load. Built with the package alone: nothing else wants it.
add_executable(model_stress_test EXCLUDE_FROM_ALL "${PROJECT_SOURCE_DIR}/src/tools/model_stress_test.cc")
thresher_target_flags(model_stress_test)
target_link_libraries(model_stress_test PRIVATE thresher_core)
# All that is the project's own is linked in; the folder of a dependency is nobody's business.
set_target_properties(model_stress_test PROPERTIES SKIP_BUILD_RPATH ON INSTALL_RPATH "")
if(THRESHER_STATIC_RUNTIME)
  target_link_options(model_stress_test PRIVATE -static-libstdc++ -static-libgcc $<$<CONFIG:Release>:-s>)
endif()
if(THRESHER_BUILD_PACKAGE)
  set_target_properties(model_stress_test PROPERTIES EXCLUDE_FROM_ALL OFF)
endif()
install(PROGRAMS "$<TARGET_FILE:model_stress_test>" DESTINATION bin COMPONENT cpp)

set(package_folder "${PROJECT_BINARY_DIR}/package")
configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/thresher-config.cmake.in"
                              "${package_folder}/thresher-config.cmake" INSTALL_DESTINATION lib/cmake/thresher
                              NO_SET_AND_CHECK_MACRO NO_CHECK_REQUIRED_COMPONENTS_MACRO)
# Before 1.0 a minor version may change what programs see.
write_basic_package_version_file("${package_folder}/thresher-config-version.cmake" VERSION ${THRESHER_RELEASE}
                                 COMPATIBILITY SameMinorVersion)
install(FILES "${package_folder}/thresher-config.cmake" "${package_folder}/thresher-config-version.cmake"
        DESTINATION lib/cmake/thresher COMPONENT cpp)
configure_file("${PROJECT_SOURCE_DIR}/cmake/thresher.pc.in" "${package_folder}/thresher.pc" @ONLY)
install(FILES "${package_folder}/thresher.pc" DESTINATION lib/pkgconfig COMPONENT cpp)
