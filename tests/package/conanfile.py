"""Tries the package that `conan create .` has made: a program is built against it."""

import os

from conan import ConanFile
from conan.tools.build import can_run
from conan.tools.cmake import CMake, cmake_layout


class UserConan(ConanFile):
    settings = "os", "arch", "compiler", "build_type"
    generators = "CMakeToolchain"

    def requirements(self):
        self.requires(self.tested_reference_str)

    def layout(self):
        cmake_layout(self)

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def test(self):
        if can_run(self):
            # Without a model file it says how it is used, so that the library has been loaded and linked.
            self.run(f"{os.path.join(self.cpp.build.bindir, 'run_model')} missing.thrmodel || test $? -eq 1")
