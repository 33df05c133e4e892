//! What the operating system gives, in functions that are the same on Linux, macOS and Windows.
//!
//! Each module is a noun. A module that has to ask the system in different words has a file for each:
//! `unix.rs` and `windows.rs`, with the same functions. No other crate names a system's interface, but for
//! the io_uring reader of the store.
//!
//! - Files: [`open`] opens those of strangers, [`mod@file`] reads and writes at positions, [`direct`] bypasses the
//!   page cache, [`identity`] tells files apart, [`replace`] writes files
//!   that appear once they are complete, [`lock`], [`space`].
//! - Memory: [`pages`] of an arena, [`process`] and [`machine`] as the system counts them, [`limits`].
//! - People: [`terminal`], [`signal`].
//!
//! ```
//! use std::fs::File;
//!
//! let path = std::env::temp_dir().join(format!("sws-os-{}", std::process::id()));
//! let mut options = File::options();
//! let file = sws_os::open::private(options.read(true).write(true).create(true)).open(&path)?;
//! sws_os::file::write_all_at(&file, b"bytes", 3)?;
//! let mut found = [0; 5];
//! sws_os::file::read_exact_at(&file, &mut found, 3)?;
//! assert_eq!(&found, b"bytes");
//! # std::fs::remove_file(&path)?;
//! # Ok::<(), std::io::Error>(())
//! ```

pub mod direct;
pub mod drive;
pub mod file;
pub mod identity;
pub mod image;
pub mod limits;
pub mod lock;
pub mod machine;
#[cfg(target_os = "macos")]
mod macos;
pub mod open;
pub mod pages;
pub mod places;
pub mod process;
pub mod replace;
pub mod signal;
pub mod space;
pub mod terminal;
