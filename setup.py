"""What pyproject.toml has no word for: slipway.pth lies beside the package, where Python reads it at its start."""

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildPy(build_py):
    """With the one file that is no module."""

    def run(self) -> None:
        """Copy it to where site-packages begins."""
        super().run()
        self.copy_file("entrypoint/slipway.pth", self.build_lib)


setup(cmdclass={"build_py": BuildPy})
