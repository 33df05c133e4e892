//! The thread on which connections run.

use std::io;
use std::time::Duration;

use tokio::runtime::Runtime;

/// Time after which the thread that makes tokens would end, for lack of work.
const IDLE: Duration = Duration::from_secs(1 << 20);

/// Runs connections on one thread, and makes tokens on another.
pub(crate) fn runtime() -> io::Result<Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(1)
        .thread_keep_alive(IDLE)
        .thread_name("sws-tokens")
        .build()
}
