//! Names that may be joined to a directory without leaving it.

use sws_os::places::is_device_name;

/// True if `name` is one ordinary file name. On Windows, names of its devices (`NUL`) are none.
pub fn is_plain_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= 255
        && name != "."
        && name != ".."
        && !name.contains(['/', '\\', ':'])
        && !name.chars().any(char::is_control)
        && !(cfg!(windows) && is_device_name(name))
}

/// True if `path` is at most 8 ordinary names joined by `/`.
pub fn is_plain_path(path: &str) -> bool {
    path.split('/').count() <= 8 && path.split('/').all(is_plain_name)
}
