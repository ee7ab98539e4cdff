"""Conan recipe of Google Highway, without its contrib library (sorting, image helpers), which Thresher does not use."""

import os

from conan import ConanFile
from conan.tools.cmake import CMake, CMakeToolchain
from conan.tools.files import copy, get, rmdir

required_conan_version = ">=2.12"


class HighwayConan(ConanFile):
    name = "highway"
    description = "Portable SIMD with run-time choice of the instruction set"
    homepage = "https://github.com/google/highway"
    license = "Apache-2.0 OR BSD-3-Clause"
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
            BUILD_TESTING=False,
            HWY_ENABLE_TESTS=False,
            HWY_ENABLE_EXAMPLES=False,
            HWY_ENABLE_CONTRIB=False,
            HWY_FORCE_STATIC_LIBS=True,
        )
        # Messages name the file they come from; where it was built is nobody's business, and would differ each time.
        toolchain.extra_cxxflags.append(f"-ffile-prefix-map={self.source_folder}=highway")
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
        self.cpp_info.set_property("cmake_file_name", "hwy")
        self.cpp_info.set_property("cmake_target_name", "hwy::hwy")
        self.cpp_info.libs = ["hwy"]
        self.cpp_info.defines = ["HWY_STATIC_DEFINE"]
        self.cpp_info.system_libs = ["m", "pthread"]
