"""The C++ package for Conan: `conan create .`; docs/building.md has the lines around it."""

import os
import re

from conan import ConanFile
from conan.tools.build import check_min_cppstd
from conan.tools.cmake import CMake, CMakeDeps, CMakeToolchain, cmake_layout
from conan.tools.files import load

required_conan_version = ">=2.12"


class ThresherConan(ConanFile):
    name = "thresher"
    description = "Inference engine for PyTorch models: runs model files, without Python"
    license = "Apache-2.0"
    package_type = "static-library"
    settings = "os", "arch", "compiler", "build_type"
    exports = "pyproject.toml"
    exports_sources = "CMakeLists.txt", "pyproject.toml", "LICENSE", "cmake/*", "licenses/*", "src/*"
    test_package_folder = "tests/package"

    def set_version(self):
        project = load(self, os.path.join(self.recipe_folder, "pyproject.toml"))
        self.version = re.search(r'^version = "([^"]+)"$', project, re.MULTILINE)[1]

    def layout(self):
        cmake_layout(self)

    def requirements(self):
        # Linked into the package: it stays out of the way of a Highway that the program chose itself.
        self.requires("highway/1.2.0", visible=False)

    def validate(self):
        check_min_cppstd(self, 20)

    def generate(self):
        toolchain = CMakeToolchain(self)
        toolchain.user_presets_path = False
        toolchain.cache_variables.update(
            THRESHER_BUILD_PYTHON=False, THRESHER_BUILD_PACKAGE=True, THRESHER_WERROR=False
        )
        toolchain.generate()
        CMakeDeps(self).generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build(target="thresher_core")

    def package(self):
        CMake(self).install(component="cpp")

    def package_info(self):
        # The package's own CMake files say how it is used.
        self.cpp_info.set_property("cmake_find_mode", "none")
        self.cpp_info.builddirs = [os.path.join("lib", "cmake", "thresher")]
        self.cpp_info.libs = ["thresher", "hwy"]
        self.cpp_info.libdirs = ["lib", os.path.join("lib", "thresher")]
        self.cpp_info.system_libs = ["pthread", "dl"]
