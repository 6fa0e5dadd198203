//! A stand-in for the driver's library, built from `tests/nvml_stub/nvml_stub.c`, whose header comment describes
//! the script that steers it.
#![allow(dead_code, reason = "no test crate uses all of it")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A driver as it was before the second version of the memory call.
pub(crate) const OLD_DRIVER: &[&str] = &["-DOLD_DRIVER"];

/// A library of its own with a script of its own; both go with the directory that they were put in.
pub(crate) struct Stub {
    library: PathBuf,
}

impl Stub {
    /// Builds the library in that directory and gives it its first script.
    ///
    /// Name a library that should not be there yet with [`Stub::path_in`] first.
    pub(crate) fn build(dir: &Path, flags: &[&str], script: &str) -> Stub {
        let stub = Stub { library: Stub::path_in(dir) };
        stub.script(script);
        // Renamed into place when it is whole: a program may be waiting for it.
        let unfinished = dir.join("unfinished.so");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/nvml_stub/nvml_stub.c");
        let built = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror"])
            .args(flags)
            .arg(source)
            .arg("-o")
            .arg(&unfinished)
            .arg("-ldl")
            .output()
            .expect("the tests need a C compiler called cc");
        assert!(built.status.success(), "cc: {}", String::from_utf8_lossy(&built.stderr));
        fs::rename(&unfinished, &stub.library).unwrap();
        stub
    }

    /// Where a library built in that directory will lie.
    pub(crate) fn path_in(dir: &Path) -> PathBuf {
        dir.join("libnvidia-ml.so.1")
    }

    /// For `--nvml.library`.
    pub(crate) fn library(&self) -> &Path {
        &self.library
    }

    /// How often the library was initialised since it was built.
    pub(crate) fn opened(&self) -> u64 {
        fs::metadata(self.library.with_file_name("libnvidia-ml.so.1.opened")).map_or(0, |meta| meta.len())
    }

    /// Whether a call has begun to block since the library was built.
    pub(crate) fn blocks(&self) -> bool {
        self.library.with_file_name("libnvidia-ml.so.1.blocked").exists()
    }

    /// Changes what the library answers from now on.
    pub(crate) fn script(&self, text: &str) {
        let whole = self.library.with_file_name("libnvidia-ml.so.1.script");
        let unfinished = self.library.with_file_name("unfinished.script");
        fs::write(&unfinished, text).unwrap();
        fs::rename(&unfinished, whole).unwrap();
    }
}
