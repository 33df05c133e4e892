//! Remedies for I/O errors, above all those caused by limits of the system.

use std::io::{self, ErrorKind};

/// EMFILE and ENFILE, for which the standard library has no kind.
const TOO_MANY_OPEN: i32 = 24;
const TOO_MANY_OPEN_IN_ALL: i32 = 23;

/// Returns the remedy for an error: the way to raise the limit if a limit of the system caused it,
/// else `otherwise`.
///
/// Few users know what to do about "too many open files", but all of them can type the command that
/// raises the limit.
pub fn remedy<'a>(cause: &io::Error, otherwise: &'a str) -> &'a str {
    match (cause.kind(), number(cause)) {
        (_, Some(TOO_MANY_OPEN)) => "raise the limit of open files (`ulimit -n`)",
        (_, Some(TOO_MANY_OPEN_IN_ALL)) => {
            "close other programs: the system has no more open files to give"
        }
        (ErrorKind::WouldBlock, _) => {
            "raise the limit of threads (`ulimit -u`) or of address space (`ulimit -v`)"
        }
        (ErrorKind::OutOfMemory, _) => {
            "close other programs, or raise the limit of address space (`ulimit -v`)"
        }
        (ErrorKind::FileTooLarge, _) => "raise the limit of file sizes (`ulimit -f`)",
        (ErrorKind::StorageFull, _) => "make room on its disk",
        (ErrorKind::QuotaExceeded, _) => "make room: the quota is used up",
        (ErrorKind::ReadOnlyFilesystem, _) => "name a place that can be written to",
        _ => otherwise,
    }
}

/// An error whose text ends with its own remedy.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Remedied(pub String);

/// An error and its remedy. There is only one remedy: that of the error itself, or else that of
/// [`remedy`].
pub fn with_remedy(cause: &io::Error, otherwise: &str) -> String {
    match cause.get_ref().is_some_and(|inner| inner.is::<Remedied>()) {
        true => cause.to_string(),
        false => format!("{cause}; {}", remedy(cause, otherwise)),
    }
}

/// The system's error number, which may be wrapped in another error that names a path.
fn number(cause: &io::Error) -> Option<i32> {
    let mut inner = cause.get_ref().and_then(|inner| inner.source());
    cause.raw_os_error().or_else(|| {
        while let Some(error) = inner {
            if let Some(found) = error.downcast_ref::<io::Error>() {
                return number(found);
            }
            inner = error.source();
        }
        None
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_have_a_remedy_of_their_own() {
        // Error numbers of Linux.
        let cases = [
            (24, "ulimit -n"),
            (11, "ulimit -u"),
            (12, "ulimit -v"),
            (27, "ulimit -f"),
            (28, "make room"),
            (2, "otherwise"),
            (13, "otherwise"),
        ];
        for (number, expected) in cases {
            let cause = io::Error::from_raw_os_error(number);
            let found = remedy(&cause, "otherwise");
            assert!(found.contains(expected), "{cause}: {found}");
        }
        assert_eq!(remedy(&io::Error::other("no number"), "otherwise"), "otherwise");
    }

    #[test]
    fn an_error_has_one_remedy() {
        let own = io::Error::other(Remedied("it rains; wait".to_owned()));
        assert_eq!(with_remedy(&own, "otherwise"), "it rains; wait");
        assert_eq!(with_remedy(&io::Error::other("it rains"), "otherwise"), "it rains; otherwise");
    }
}
