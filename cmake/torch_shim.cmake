# thresher._torch_shim_<major>_<minor>: the profiler's connection to PyTorch, one library per minor version of PyTorch,
# since Kineto's classes change with each. Nothing else sees PyTorch's headers.

include_guard()

add_custom_target(torch_shims)

# Sets `result` to the folder of the package torch: `place` itself, or where that interpreter finds it.
function(thresher_find_torch place result)
  set(folder "${place}")
  if(NOT IS_DIRECTORY "${folder}")
    execute_process(
      COMMAND "${place}" -c "import importlib.util as u; s = u.find_spec('torch'); print(s and s.submodule_search_locations[0] or '')"
      OUTPUT_VARIABLE folder OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  endif()
  if(NOT EXISTS "${folder}/include/kineto/libkineto.h")
    message(FATAL_ERROR "THRESHER_TORCH_SHIMS: expected a Python interpreter that has PyTorch, or the folder of "
                        "the package torch; got '${place}', without include/kineto/libkineto.h. Name another one, or "
                        "leave THRESHER_TORCH_SHIMS empty to build without the shim.")
  endif()
  set(${result} "${folder}" PARENT_SCOPE)
endfunction()

# Sets `result` to the value of a macro in PyTorch's version.h.
function(thresher_read_torch_version folder macro result)
  file(STRINGS "${folder}/include/torch/headeronly/version.h" line REGEX "#define ${macro} [0-9]+" LIMIT_COUNT 1)
  if(NOT line MATCHES "([0-9]+)$")
    message(FATAL_ERROR "Expected ${macro} in ${folder}/include/torch/headeronly/version.h; got '${line}'. Install "
                        "PyTorch again, or leave it out of THRESHER_TORCH_SHIMS.")
  endif()
  set(${result} "${CMAKE_MATCH_1}" PARENT_SCOPE)
endfunction()

function(thresher_add_torch_shim folder)
  thresher_read_torch_version("${folder}" TORCH_VERSION_MAJOR major)
  thresher_read_torch_version("${folder}" TORCH_VERSION_MINOR minor)
  set(name _torch_shim_${major}_${minor})
  if(TARGET ${name})
    message(FATAL_ERROR "THRESHER_TORCH_SHIMS names PyTorch ${major}.${minor} twice; the second is ${folder}. Remove it.")
  endif()
  file(GLOB sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/src/thresher/torch_shim/*.cc")
  # Where a profiler of others registers; before, the shim tells tensors apart and makes results, and nothing else.
  if("${major}.${minor}" VERSION_LESS 2.13)
    list(FILTER sources EXCLUDE REGEX "/(registration|session)\\.cc$")
    message(STATUS "${name}: PyTorch ${major}.${minor} has no place for others' profilers; the rest of the shim is built")
  else()
    list(FILTER sources EXCLUDE REGEX "/no_registration\\.cc$")
  endif()
  # The suffix is nanobind's: FindPython would take that of the interpreter, even where a wheel is cross-compiled.
  Python_add_library(${name} MODULE ${sources})
  set_target_properties(${name} PROPERTIES SUFFIX "${NB_SUFFIX}")
  thresher_target_flags(${name})
  target_include_directories(${name} PRIVATE "${PROJECT_SOURCE_DIR}/src")
  target_include_directories(${name} SYSTEM PRIVATE "${folder}/include" "${folder}/include/kineto")
  # PyTorch has compiled the formatting library into itself under other names; the header needs no symbol of it.
  target_compile_definitions(${name} PRIVATE USE_KINETO FMT_HEADER_ONLY=1 THRESHER_TORCH_SHIM_NAME="thresher.${name}"
                                             THRESHER_TORCH_SHIM_INIT=PyInit_${name})
  foreach(library IN ITEMS torch_python torch_cpu c10)
    target_link_libraries(${name} PRIVATE "${folder}/lib/lib${library}.so")
  endforeach()
  # No path to PyTorch inside: it is imported before the shim, and its libraries are found by their names.
  set_target_properties(${name} PROPERTIES SKIP_BUILD_RPATH ON INSTALL_RPATH "")
  # PyTorch's checks name their file; where it lay when the wheel was built is nobody's business. GCC may follow links.
  file(REAL_PATH "${folder}" real)
  target_compile_options(${name} PRIVATE "$<$<CONFIG:Release>:-ffile-prefix-map=${folder}/include=torch>"
                                         "$<$<CONFIG:Release>:-ffile-prefix-map=${real}/include=torch>"
                                         "$<$<CONFIG:Release>:-ffile-prefix-map=${PROJECT_SOURCE_DIR}/src=src>")
  # libstdc++ stays shared, unlike the engine's: objects of it go to and fro between PyTorch and the shim.
  target_link_options(${name} PRIVATE -Wl,--gc-sections)
  install(TARGETS ${name} LIBRARY DESTINATION thresher COMPONENT python)
  add_dependencies(torch_shims ${name})
endfunction()

foreach(place IN LISTS THRESHER_TORCH_SHIMS)
  thresher_find_torch("${place}" folder)
  thresher_add_torch_shim("${folder}")
endforeach()
