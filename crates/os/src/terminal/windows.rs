use std::io;

use windows_sys::Win32::Foundation::HANDLE;
use windows_sys::Win32::Globalization::CP_UTF8;
use windows_sys::Win32::System::Console::{
    CONSOLE_SCREEN_BUFFER_INFO, ENABLE_ECHO_INPUT, ENABLE_LINE_INPUT,
    ENABLE_VIRTUAL_TERMINAL_PROCESSING, GetConsoleMode, GetConsoleScreenBufferInfo, GetStdHandle,
    STD_ERROR_HANDLE, STD_INPUT_HANDLE, STD_OUTPUT_HANDLE, SetConsoleMode, SetConsoleOutputCP,
};

use super::StdStream;

/// The mode of the keys, as the screen needs no other.
pub(super) type Mode = u32;

fn handle(stream: StdStream) -> HANDLE {
    let which = match stream {
        StdStream::In => STD_INPUT_HANDLE,
        StdStream::Out => STD_OUTPUT_HANDLE,
        StdStream::Err => STD_ERROR_HANDLE,
    };
    // SAFETY: asks for a handle that the process has.
    unsafe { GetStdHandle(which) }
}

fn mode(handle: HANDLE) -> io::Result<u32> {
    let mut mode = 0;
    // SAFETY: any handle may be asked, and one number is written.
    match unsafe { GetConsoleMode(handle, &mut mode) } {
        0 => Err(io::Error::last_os_error()),
        _ => Ok(mode),
    }
}

fn set_mode(handle: HANDLE, mode: u32) -> io::Result<()> {
    // SAFETY: any handle may be asked.
    match unsafe { SetConsoleMode(handle, mode) } {
        0 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

pub(super) fn size(of: StdStream) -> Option<(u16, u16)> {
    // SAFETY: a structure of numbers.
    let mut info: CONSOLE_SCREEN_BUFFER_INFO = unsafe { std::mem::zeroed() };
    // SAFETY: any handle may be asked, and the structure is the one that is filled.
    if unsafe { GetConsoleScreenBufferInfo(handle(of), &mut info) } == 0 {
        return None;
    }
    let window = info.srWindow;
    let span = |from: i16, to: i16| u16::try_from(i32::from(to) - i32::from(from) + 1).ok();
    Some((span(window.Left, window.Right)?, span(window.Top, window.Bottom)?))
}

/// Keys are those of standard input, whatever stream shows the screen.
pub(super) fn settings(_: StdStream) -> io::Result<Mode> {
    mode(handle(StdStream::In))
}

pub(super) fn quiet(of: &Mode) -> Mode {
    of & !(ENABLE_ECHO_INPUT | ENABLE_LINE_INPUT)
}

pub(super) fn set(_: StdStream, settings: &Mode) -> io::Result<()> {
    set_mode(handle(StdStream::In), *settings)
}

pub(super) fn is_background(_: StdStream) -> bool {
    false
}

/// A stream that is no console refuses, and needs nothing.
pub(super) fn prepare() {
    for stream in [StdStream::Out, StdStream::Err] {
        let handle = handle(stream);
        if let Ok(mode) = mode(handle) {
            let _ = set_mode(handle, mode | ENABLE_VIRTUAL_TERMINAL_PROCESSING);
        }
    }
    // SAFETY: sets a number of the console, if there is one.
    unsafe { SetConsoleOutputCP(CP_UTF8) };
}
