//! Places of a user's files, and names that no file can have.

use std::ffi::OsString;
use std::path::PathBuf;

/// Names of devices on Windows, in any directory and with any ending.
const DEVICES: [&str; 6] = ["con", "prn", "aux", "nul", "conin$", "conout$"];

/// True if a file of this name would be a device on Windows, or get another name.
pub fn is_device_name(name: &str) -> bool {
    if name.ends_with(['.', ' ']) {
        return true;
    }
    let stem = name.split('.').next().unwrap_or_default().trim_end().to_ascii_lowercase();
    let port = stem.strip_prefix("com").or(stem.strip_prefix("lpt"));
    DEVICES.contains(&&*stem)
        || matches!(
            port,
            Some("1" | "2" | "3" | "4" | "5" | "6" | "7" | "8" | "9" | "¹" | "²" | "³")
        )
}

/// A user's directory for files of one kind: that of `variable` if it holds an absolute path, or else
/// `below` in the user's home. `get` returns variables of the environment.
pub fn of_user(
    get: impl Fn(&str) -> Option<OsString>,
    variable: &str,
    below: &str,
) -> Option<PathBuf> {
    match get(variable).map(PathBuf::from) {
        Some(typed) if typed.is_absolute() => Some(typed),
        _ => Some(home(get)?.join(below)),
    }
}

/// The user's home directory, as an absolute path: of `HOME`, or on Windows `USERPROFILE`.
pub fn home(get: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let names: &[&str] = if cfg!(windows) { &["HOME", "USERPROFILE"] } else { &["HOME"] };
    let mut found = names.iter().filter_map(|name| get(name).map(PathBuf::from));
    found.find(|path| path.is_absolute())
}

/// Bytes that tell a path apart from others.
pub fn bytes(path: &std::path::Path) -> &[u8] {
    path.as_os_str().as_encoded_bytes()
}

/// A path as functions of Windows take it.
#[cfg(windows)]
pub(crate) fn wide(path: &std::path::Path) -> Vec<u16> {
    use std::os::windows::ffi::OsStrExt;

    path.as_os_str().encode_wide().chain([0]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_of_windows_are_known_by_name() {
        for name in ["NUL", "con", "Aux.json", "com1", "LPT9.txt", "nul .txt", "a.", "a ", "CONIN$"]
        {
            assert!(is_device_name(name), "{name}");
        }
        for name in ["null", "console", "com", "com0", "com10", "config.json", "a.nul", ".con"] {
            assert!(!is_device_name(name), "{name}");
        }
    }
}
