//! Names that may be joined to a directory without leaving it.

/// True if `name` is one ordinary file name, on every platform.
pub fn is_plain_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= 255
        && name != "."
        && name != ".."
        && !name.contains(['/', '\\', ':'])
        && !name.chars().any(char::is_control)
}

/// True if `path` is at most 8 ordinary names joined by `/`.
pub fn is_plain_path(path: &str) -> bool {
    path.split('/').count() <= 8 && path.split('/').all(is_plain_name)
}
