//! Locks on files that end with the process, at the latest.

use std::fs::{File, TryLockError};
use std::io;
use std::path::Path;

/// Locks a file until it is closed. False if another process has locked it. On a file system without
/// locks, other processes are not detected.
pub fn lock_alone(file: &File) -> bool {
    !matches!(file.try_lock(), Err(TryLockError::WouldBlock))
}

/// Locks a file, and waits for other processes.
pub fn wait_alone(file: &File) -> io::Result<()> {
    uninterrupted(|| file.lock())
}

/// Locks a file together with others that lock it like this, and waits for those that lock it alone.
pub fn wait_shared(file: &File) -> io::Result<()> {
    uninterrupted(|| file.lock_shared())
}

fn uninterrupted(lock: impl Fn() -> io::Result<()>) -> io::Result<()> {
    loop {
        match lock() {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

/// A directory that no other process has locked like this, until this is dropped.
#[derive(Debug)]
pub struct DirLock(#[expect(dead_code, reason = "held open")] Held);

#[cfg(unix)]
type Held = File;
#[cfg(windows)]
type Held = std::os::windows::io::OwnedHandle;

impl DirLock {
    /// Locks a directory. `None` if another process has locked it.
    #[cfg(unix)]
    pub fn take(dir: &Path) -> io::Result<Option<DirLock>> {
        let file = File::open(dir)?;
        Ok(lock_alone(&file).then_some(DirLock(file)))
    }

    /// Locks a directory. `None` if another process of this machine has locked it.
    ///
    /// Directories have no locks here, and one that is held open could be neither removed nor renamed. So
    /// an object of the system has its identity as a name, and lives as long as the lock.
    #[cfg(windows)]
    pub fn take(dir: &Path) -> io::Result<Option<DirLock>> {
        use std::os::windows::io::{FromRawHandle, OwnedHandle};

        use windows_sys::Win32::Foundation::{ERROR_ALREADY_EXISTS, FALSE, GetLastError};
        use windows_sys::Win32::System::Threading::CreateMutexW;

        let it = crate::identity::FileIdentity::at(dir)?;
        let name = format!("Global\\sws-{:x}-{:x}", it.device, it.index);
        let name = crate::places::wide(Path::new(&name));
        // SAFETY: the name ends with a zero; the object is not owned, only there.
        let (handle, error) =
            unsafe { (CreateMutexW(std::ptr::null(), FALSE, name.as_ptr()), GetLastError()) };
        if handle.is_null() {
            return Err(io::Error::from_raw_os_error(error as i32));
        }
        // SAFETY: the handle was just made, and nothing else closes it.
        let held = unsafe { OwnedHandle::from_raw_handle(handle) };
        Ok((error != ERROR_ALREADY_EXISTS).then_some(DirLock(held)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_keeps_others_out_until_it_is_dropped() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("lock");
        let [one, two] = [(); 2].map(|()| File::create(&path).unwrap());
        assert!(lock_alone(&one) && !lock_alone(&two));
        drop(one);
        wait_shared(&two).unwrap();
        drop(two);

        let held = DirLock::take(temp.path()).unwrap();
        assert!(held.is_some() && DirLock::take(temp.path()).unwrap().is_none());
        // Its files are used as before.
        std::fs::write(temp.path().join("file"), b"x").unwrap();
        assert_eq!(temp.path().read_dir().unwrap().count(), 2);
        drop(held);
        assert!(DirLock::take(temp.path()).unwrap().is_some());
    }
}
