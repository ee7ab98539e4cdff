"""Conan recipe of GoogleTest and GoogleMock."""

import os

from conan import ConanFile
from conan.tools.cmake import CMake, CMakeToolchain
from conan.tools.files import copy, get, rmdir

required_conan_version = ">=2.12"


class GTestConan(ConanFile):
    name = "gtest"
    description = "C++ test and mocking framework"
    homepage = "https://github.com/google/googletest"
    license = "BSD-3-Clause"
    package_type = "static-library"
    settings = "os", "arch", "compiler", "build_type"
    options = {"fPIC": [True, False]}
    default_options = {"fPIC": True}

    def layout(self):
        self.folders.source = "src"
        self.folders.build = "build"
        self.folders.generators = "build/generators"

    def source(self):
        archives = self.conan_data["sources"][self.version]
        cache = os.path.join(self.conf.get("user.thresher:sources", default=""), "s")
        archive = next((a for a in archives if os.path.exists(os.path.join(cache, a["sha256"]))), archives[0])
        url = archive.get("url", "debian source package")
        get(self, url, sha256=archive["sha256"], filename=archive["filename"], strip_root=True)

    def generate(self):
        toolchain = CMakeToolchain(self)
        toolchain.user_presets_path = False
        toolchain.cache_variables.update(
            BUILD_GMOCK=True,
            INSTALL_GTEST=True,
        )
        toolchain.generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def package(self):
        copy(self, "LICENSE*", self.source_folder, os.path.join(self.package_folder, "licenses"))
        CMake(self).install()
        for folder in ("lib/cmake", "lib/pkgconfig", "share"):
            rmdir(self, os.path.join(self.package_folder, folder))

    def package_info(self):
        self.cpp_info.set_property("cmake_file_name", "GTest")
        requires = {"gtest": [], "gtest_main": ["gtest"], "gmock": ["gtest"], "gmock_main": ["gmock"]}
        for library, needs in requires.items():
            component = self.cpp_info.components[library]
            component.set_property("cmake_target_name", f"GTest::{library}")
            component.libs = [library]
            component.requires = needs
        self.cpp_info.components["gtest"].system_libs = ["m", "pthread"]
