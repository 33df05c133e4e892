//! The border between C and Rust: pointers, panics and errors.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;

thread_local! {
    /// The sentence of the last error of this thread.
    static LAST: RefCell<CString> = RefCell::default();
}

/// Returns the sentence of the last error in this thread; empty without one. It is valid until the next call
/// of this library in the thread.
#[unsafe(no_mangle)]
pub extern "C" fn sws_error() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// Does the work of a function. An error or a panic is kept as a sentence, and `failed` returned.
pub(crate) fn guarded<T>(failed: T, work: impl FnOnce() -> Result<T, String>) -> T {
    // Work that panics leaves a mutex that refuses further work.
    let sentence = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(done)) => return done,
        Ok(Err(sentence)) => sentence,
        Err(_) => "the library has failed, which is a bug: please report it".to_owned(),
    };
    // Text of a file may contain the end of a C string.
    let sentence = CString::new(sentence.replace('\0', " ")).unwrap_or_default();
    let _ = LAST.try_with(|last| *last.borrow_mut() = sentence);
    failed
}

/// The sentence of an error.
pub(crate) fn sentence(error: impl Display) -> String {
    error.to_string()
}

/// Refuses a null pointer by the name of its argument.
pub(crate) fn null(name: &str) -> String {
    format!("`{name}` is a null pointer; give one that is not")
}

/// Reads a C string.
///
/// # Safety
///
/// The pointer is null, or leads to a string that ends with 0 and stays as it is for `'a`.
pub(crate) unsafe fn string<'a>(pointer: *const c_char, name: &str) -> Result<&'a str, String> {
    if pointer.is_null() {
        return Err(null(name));
    }
    // SAFETY: not null; the caller vouches for the rest.
    let text = unsafe { CStr::from_ptr(pointer) };
    let Ok(text) = text.to_str() else {
        return Err(format!("`{name}` is not UTF-8; give text that is"));
    };
    Ok(text)
}

/// Reads an object that this library made.
///
/// # Safety
///
/// The pointer is null, or leads to an object that is not closed during `'a`.
pub(crate) unsafe fn object<'a, T>(pointer: *const T, name: &str) -> Result<&'a T, String> {
    // SAFETY: as the caller vouches. Objects of this library are only shared.
    let Some(object) = (unsafe { pointer.as_ref() }) else { return Err(null(name)) };
    Ok(object)
}

/// Returns the place of a value that the caller wants filled. It may be uninitialised, so it is written to and
/// never borrowed.
pub(crate) fn output<T>(pointer: *mut T, name: &str) -> Result<NonNull<T>, String> {
    let Some(place) = NonNull::new(pointer) else { return Err(null(name)) };
    Ok(place)
}
