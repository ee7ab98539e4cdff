# The nanobind module thresher._engine.

include_guard()

find_package(Python 3.10 REQUIRED COMPONENTS Interpreter Development.Module)
if(NOT nanobind_ROOT AND NOT nanobind_DIR)
  execute_process(COMMAND "${Python_EXECUTABLE}" -m nanobind --cmake_dir OUTPUT_VARIABLE nanobind_ROOT
                  OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
find_package(nanobind CONFIG QUIET)
if(NOT nanobind_FOUND)
  message(FATAL_ERROR "Expected nanobind for ${Python_EXECUTABLE}; got none. Install it with "
                      "`${Python_EXECUTABLE} -m pip install -r requirements/build.txt`, or let `nox -s build` do it.")
endif()

file(GLOB_RECURSE binding_sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/src/thresher/bindings/*.cc")
if(binding_sources)
  nanobind_add_module(_engine NB_STATIC NOMINSIZE ${binding_sources})
  thresher_target_flags(_engine)
  target_link_libraries(_engine PRIVATE thresher_core)
  # Nothing it links is shared. A path that is taken out on installing would leave its length behind, and a wheel built in
  # another folder would have other bytes.
  set_target_properties(_engine PROPERTIES SKIP_BUILD_RPATH ON INSTALL_RPATH "")
  if(THRESHER_STATIC_RUNTIME)
    # Hidden and stripped of what nobody calls, so that an unused function of libstdc++ does not raise the glibc version
    # that the wheel needs. libgcc's unwinder stays shared: every glibc system has it, and the static one needs glibc 2.35. Its
    # arithmetic is linked in: the conversions of fp16 are in libgcc_s from GCC 12 on only, which systems with glibc 2.34 lack.
    # Of the engine itself only what pti.h exports is visible.
    target_link_options(_engine PRIVATE -static-libstdc++ -Wl,--exclude-libs,libstdc++.a:libhwy.a:libgcc.a -Wl,--gc-sections)
    target_link_libraries(_engine PRIVATE gcc)
  endif()
  install(TARGETS _engine LIBRARY DESTINATION thresher COMPONENT python)
endif()
