use std::io;
use std::os::fd::BorrowedFd;

use rustix::process::getpgrp;
use rustix::stdio;
use rustix::termios::{
    InputModes, LocalModes, OptionalActions, SpecialCodeIndex, tcgetattr, tcgetpgrp, tcgetwinsize,
    tcsetattr,
};

pub(super) use rustix::termios::Termios as Mode;

use super::StdStream;

fn fd(stream: StdStream) -> BorrowedFd<'static> {
    match stream {
        StdStream::In => stdio::stdin(),
        StdStream::Out => stdio::stdout(),
        StdStream::Err => stdio::stderr(),
    }
}

pub(super) fn size(of: StdStream) -> Option<(u16, u16)> {
    let size = tcgetwinsize(fd(of)).ok()?;
    Some((size.ws_col, size.ws_row))
}

pub(super) fn settings(stream: StdStream) -> io::Result<Mode> {
    Ok(tcgetattr(fd(stream))?)
}

pub(super) fn quiet(of: &Mode) -> Mode {
    let mut quiet = of.clone();
    quiet.local_modes.remove(LocalModes::ECHO | LocalModes::ICANON);
    quiet.input_modes.remove(InputModes::IXON);
    quiet.special_codes[SpecialCodeIndex::VSUSP] = 0;
    quiet
}

pub(super) fn set(stream: StdStream, settings: &Mode) -> io::Result<()> {
    Ok(tcsetattr(fd(stream), OptionalActions::Now, settings)?)
}

pub(super) fn is_background(stream: StdStream) -> bool {
    tcgetpgrp(fd(stream)).is_ok_and(|group| group != getpgrp())
}

pub(super) fn prepare() {}
