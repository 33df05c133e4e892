//! The thread on which connections run.

use std::io;
use std::time::Duration;

use tokio::runtime::Runtime;

/// Idle time after which the tokenising thread would end.
const IDLE: Duration = Duration::from_secs(1 << 20);

/// Runs connections on one thread, and tokenising on another.
pub(crate) fn runtime() -> io::Result<Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(1)
        .thread_keep_alive(IDLE)
        .thread_name("sws-tokens")
        .build()
}
