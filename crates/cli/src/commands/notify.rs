//! What a service's manager wants to know: that the server is ready.

use std::env;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use crate::terminal::note;

/// Tells the manager that started this program, if there is one, that requests are answered.
pub(crate) fn ready() {
    let Some(name) = env::var_os("NOTIFY_SOCKET") else { return };
    let sent = match name.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
        _ => SocketAddr::from_pathname(&name),
    }
    .and_then(|address| UnixDatagram::unbound()?.send_to_addr(b"READY=1", &address));
    if let Err(e) = sent {
        note!(
            "sws: NOTIFY_SOCKET names {name:?}, which cannot be told that the server is ready: {e}"
        );
    }
}
