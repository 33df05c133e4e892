//! Protection against dependencies that may panic on the contents of a file.
//!
//! Such a panic becomes an error about the file like any other: it is caught, and prints nothing.
//! This requires `panic = "unwind"`, which the profiles in the workspace's Cargo.toml keep.

use std::cell::Cell;
use std::io;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

thread_local! {
    static GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// Runs a function; returns None, without printing anything, if it panics. Panics of other threads,
/// and later ones of this thread, are reported as usual.
pub(super) fn caught<T>(run: impl FnOnce() -> T) -> Option<T> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let report = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !GUARDED.get() {
                report(info);
            }
        }));
    });
    let outer = GUARDED.replace(true);
    let result = panic::catch_unwind(AssertUnwindSafe(run));
    GUARDED.set(outer);
    result.ok()
}

/// Same as [`caught`], on a new thread with a stack of this size. Nothing that a dependency keeps
/// per thread outlives the call.
pub(super) fn caught_on_thread<T: Send>(
    stack: usize,
    run: impl FnOnce() -> T + Send,
) -> io::Result<Option<T>> {
    std::thread::scope(|scope| {
        let builder = std::thread::Builder::new().stack_size(stack);
        let thread = builder.spawn_scoped(scope, || caught(run))?;
        Ok(thread.join().ok().flatten())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_caught_and_the_next_is_reported_again() {
        const { assert!(cfg!(panic = "unwind"), "nothing else can be caught") };
        assert_eq!(caught(|| 1), Some(1));
        assert_eq!(caught(|| panic!("not seen")), None::<()>);
        assert!(!GUARDED.get());
        assert_eq!(caught_on_thread(1 << 20, || 2).unwrap(), Some(2));
        assert_eq!(caught_on_thread(1 << 20, || panic!("not seen")).unwrap(), None::<()>);
    }
}
