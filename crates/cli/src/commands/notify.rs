//! What a service's manager wants to know: that the server is ready.

use std::env;

use sws_os::process::notify_manager;

use crate::terminal::note;

/// Tells the manager that started this program, if there is one, that requests are answered.
pub(crate) fn ready() {
    let Some(name) = env::var_os("NOTIFY_SOCKET") else { return };
    if let Err(e) = notify_manager(&name, b"READY=1") {
        note!(
            "sws: NOTIFY_SOCKET names {name:?}, which cannot be told that the server is ready: {e}"
        );
    }
}
