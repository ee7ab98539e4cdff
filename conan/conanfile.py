"""The native dependencies of Thresher. `nox -s build` installs them; see docs/building.md."""

from conan import ConanFile
from conan.tools.cmake import CMakeDeps, CMakeToolchain

required_conan_version = ">=2.12"


class ThresherConan(ConanFile):
    name = "thresher"
    package_type = "application"
    settings = "os", "arch", "compiler", "build_type"

    def requirements(self):
        self.requires("highway/1.2.0")

    def build_requirements(self):
        self.test_requires("gtest/1.16.0")

    def generate(self):
        toolchain = CMakeToolchain(self)
        # Conan would write CMakeUserPresets.json into the source tree; CMakePresets.json is committed instead.
        toolchain.user_presets_path = False
        toolchain.generate()
        CMakeDeps(self).generate()
