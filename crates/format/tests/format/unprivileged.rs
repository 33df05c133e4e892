//! Access as a user who is not root.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Calls `check` with a directory, as a user without access to its subdirectory `locked`.
pub fn unprivileged(check: impl FnOnce(&Path) + Send) {
    let dir = tempfile::tempdir().unwrap();
    let mode = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    fs::create_dir(dir.path().join("locked")).unwrap();
    mode(dir.path(), 0o755);
    mode(&dir.path().join("locked"), 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Permissions do not bind root. On Linux a single thread can change its user.
            if rustix::process::geteuid().is_root() {
                let nobody = rustix::process::Uid::from_raw(65_534);
                rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
            }
            check(dir.path());
        });
    });
    mode(&dir.path().join("locked"), 0o755);
}
