//! The few functions of OpenCL 1.2 that the host needs, in a library that is loaded at run time. All `unsafe` of the
//! crate is here.
//!
//! Every command is followed to its end by asking its event, never by a call that waits in the driver, so a device
//! that hangs costs a time limit. The driver may then still read or write the bytes of the command. They are therefore
//! always in memory of this module's own, which is leaked in that case together with all objects of the driver.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_void};
use std::ptr::{null, null_mut};
use std::sync::OnceLock;
use std::time::Duration;

use libloading::Library;
use sws_format::Clock;

use super::CallError;
use crate::job::{DeviceJob, JOB_BYTES};
use crate::kernel::ROWS;

type Object = *mut c_void;
type Status = i32;

/// Declares the functions, and loads all of them.
macro_rules! functions {
    ($($name:ident = $symbol:literal($($arg:ty),*) -> $result:ty;)*) => {
        struct Functions {
            $($name: unsafe extern "system" fn($($arg),*) -> $result,)*
        }

        impl Functions {
            fn load(library: &Library) -> Result<Functions, libloading::Error> {
                Ok(Functions {
                    $(
                        // SAFETY: the type is that of the function in `CL/cl.h` of OpenCL 1.2, which later versions
                        // keep; pointers to objects and to callbacks, which are all null here, are passed as `*mut
                        // c_void`.
                        $name: *unsafe { library.get(concat!($symbol, "\0").as_bytes()) }?,
                    )*
                })
            }
        }
    };
}

functions! {
    platforms = "clGetPlatformIDs"(u32, *mut Object, *mut u32) -> Status;
    devices = "clGetDeviceIDs"(Object, u64, u32, *mut Object, *mut u32) -> Status;
    device_info = "clGetDeviceInfo"(Object, u32, usize, *mut c_void, *mut usize) -> Status;
    create_context = "clCreateContext"(*const isize, u32, *const Object, Object, Object, *mut Status) -> Object;
    create_queue = "clCreateCommandQueue"(Object, Object, u64, *mut Status) -> Object;
    create_buffer = "clCreateBuffer"(Object, u64, usize, *mut c_void, *mut Status) -> Object;
    create_program = "clCreateProgramWithSource"(Object, u32, *const *const c_char, *const usize, *mut Status) -> Object;
    build_program = "clBuildProgram"(Object, u32, *const Object, *const c_char, Object, Object) -> Status;
    build_info = "clGetProgramBuildInfo"(Object, Object, u32, usize, *mut c_void, *mut usize) -> Status;
    create_kernel = "clCreateKernel"(Object, *const c_char, *mut Status) -> Object;
    set_argument = "clSetKernelArg"(Object, u32, usize, *const c_void) -> Status;
    launch = "clEnqueueNDRangeKernel"(Object, Object, u32, *const usize, *const usize, *const usize, u32, *const Object, *mut Object) -> Status;
    write = "clEnqueueWriteBuffer"(Object, Object, u32, usize, usize, *const c_void, u32, *const Object, *mut Object) -> Status;
    read = "clEnqueueReadBuffer"(Object, Object, u32, usize, usize, *mut c_void, u32, *const Object, *mut Object) -> Status;
    flush = "clFlush"(Object) -> Status;
    event_info = "clGetEventInfo"(Object, u32, usize, *mut c_void, *mut usize) -> Status;
    release_event = "clReleaseEvent"(Object) -> Status;
    release_buffer = "clReleaseMemObject"(Object) -> Status;
    release_kernel = "clReleaseKernel"(Object) -> Status;
    release_program = "clReleaseProgram"(Object) -> Status;
    release_queue = "clReleaseCommandQueue"(Object) -> Status;
    release_context = "clReleaseContext"(Object) -> Status;
}

/// Names of the library, the first that is found.
const LIBRARIES: &[&str] = if cfg!(windows) {
    &["OpenCL.dll"]
} else if cfg!(target_os = "macos") {
    &["/System/Library/Frameworks/OpenCL.framework/OpenCL"]
} else {
    &["libOpenCL.so.1", "libOpenCL.so"]
};

/// The functions of the library, which stays loaded.
fn functions() -> Result<&'static Functions, String> {
    static LOADED: OnceLock<Result<Functions, String>> = OnceLock::new();
    let load = || {
        let mut cause = String::new();
        for name in LIBRARIES {
            // SAFETY: the library of OpenCL drivers, and the drivers that it loads, are as trusted as the system that
            // they are installed in. Nothing else runs when a library is loaded.
            match unsafe { load_of_system(name) } {
                Ok(library) => {
                    let functions = Functions::load(&library).map_err(|error| error.to_string());
                    std::mem::forget(library);
                    return functions;
                }
                Err(error) => cause = if cause.is_empty() { error.to_string() } else { cause },
            }
        }
        Err(cause)
    };
    LOADED.get_or_init(load).as_ref().map_err(String::clone)
}

/// Loads a library of the system: on Windows not one in the directory of the process.
unsafe fn load_of_system(name: &str) -> Result<Library, libloading::Error> {
    #[cfg(windows)]
    {
        use libloading::os::windows::{LOAD_LIBRARY_SEARCH_SYSTEM32, Library as OfSystem};
        // SAFETY: that of the caller.
        unsafe { OfSystem::load_with_flags(name, LOAD_LIBRARY_SEARCH_SYSTEM32) }.map(Library::from)
    }
    #[cfg(not(windows))]
    // SAFETY: that of the caller.
    unsafe {
        Library::new(name)
    }
}

fn passed(call: &'static str, status: Status) -> Result<(), CallError> {
    if status < 0 { Err(CallError::Failed { call, status }) } else { Ok(()) }
}

fn made(call: &'static str, object: Object, status: Status) -> Result<Object, CallError> {
    passed(call, status)?;
    if object.is_null() { Err(CallError::Failed { call, status }) } else { Ok(object) }
}

/// A device that a driver lists. Drivers keep them as long as they are loaded.
#[derive(Clone, Copy)]
pub(super) struct ListedDevice {
    functions: &'static Functions,
    device: Object,
}

// SAFETY: OpenCL is thread-safe but for setting arguments of one kernel, and each kernel here is used through `&mut`.
unsafe impl Send for ListedDevice {}

// SAFETY: as above.
unsafe impl Sync for ListedDevice {}

/// All devices of all drivers, asked for once: some drivers do not survive two threads that ask at first.
pub(super) fn list() -> Result<&'static [ListedDevice], CallError> {
    static LISTED: OnceLock<Vec<ListedDevice>> = OnceLock::new();
    let functions = functions().map_err(CallError::NoLibrary)?;
    Ok(LISTED.get_or_init(|| ask(functions)))
}

fn ask(functions: &'static Functions) -> Vec<ListedDevice> {
    /// More than any machine has.
    const MOST: usize = 64;
    /// Devices of any type.
    const ANY: u64 = 0xffff_ffff;
    let mut found = Vec::new();
    let mut platforms = [null_mut(); MOST];
    let mut count = 0;
    // SAFETY: room for as many as is said.
    let status = unsafe { (functions.platforms)(MOST as u32, platforms.as_mut_ptr(), &mut count) };
    // A library without drivers says so by an error.
    let platforms = if status < 0 { &[] } else { &platforms[..MOST.min(count as usize)] };
    for &platform in platforms {
        let mut devices = [null_mut(); MOST];
        let mut count = 0;
        let list = functions.devices;
        // SAFETY: a platform that was listed, and room for as many as is said.
        let status = unsafe { list(platform, ANY, MOST as u32, devices.as_mut_ptr(), &mut count) };
        let count = if status < 0 { 0 } else { MOST.min(count as usize) };
        found.extend(devices[..count].iter().map(|&device| ListedDevice { functions, device }));
    }
    found
}

impl ListedDevice {
    /// A fact that is a number of up to eight bytes; zero if the driver does not know it.
    pub(super) fn number(&self, fact: u32) -> u64 {
        let mut number = 0u64;
        // SAFETY: eight bytes, of which a shorter number takes the lower ones of a little-endian machine.
        unsafe {
            (self.functions.device_info)(
                self.device,
                fact,
                8,
                (&raw mut number).cast(),
                null_mut(),
            );
        }
        number
    }

    /// A fact in words.
    pub(super) fn text(&self, fact: u32) -> String {
        let mut bytes = [0u8; 256];
        // SAFETY: room for as many as is said. The last byte stays zero, as one fewer is offered.
        unsafe {
            let most = bytes.len() - 1;
            let to = bytes.as_mut_ptr().cast();
            (self.functions.device_info)(self.device, fact, most, to, null_mut());
        }
        let text = CStr::from_bytes_until_nul(&bytes).unwrap_or_default();
        text.to_string_lossy().trim().to_owned()
    }

    /// Compiles a program for the device, and makes its kernels by name.
    pub(super) fn open(
        self,
        source: &str,
        kernels: impl Iterator<Item = &'static CStr>,
        limit: Duration,
    ) -> Result<OpenQueue, CallError> {
        let mut opened = OpenQueue {
            listed: self,
            context: null_mut(),
            queue: null_mut(),
            program: null_mut(),
            kernels: Vec::new(),
            staging: vec![0; STAGING],
            clock: Clock::real(),
            limit,
            is_lost: false,
        };
        let Functions { create_context, create_queue, create_program, create_kernel, .. } =
            self.functions;
        let mut status = 0;
        // SAFETY: one device that is listed, no properties and no callback.
        let context =
            unsafe { create_context(null(), 1, &self.device, null_mut(), null_mut(), &mut status) };
        opened.context = made("clCreateContext", context, status)?;
        // SAFETY: a context of this device.
        let queue = unsafe { create_queue(opened.context, self.device, 0, &mut status) };
        opened.queue = made("clCreateCommandQueue", queue, status)?;
        let text = source.as_ptr().cast();
        let len = source.len();
        // SAFETY: one text with its length, which the driver copies.
        let program = unsafe { create_program(opened.context, 1, &text, &len, &mut status) };
        opened.program = made("clCreateProgramWithSource", program, status)?;
        opened.build()?;
        for name in kernels {
            // SAFETY: a program that is built, and a name with its end.
            let kernel = unsafe { create_kernel(opened.program, name.as_ptr(), &mut status) };
            opened.kernels.push(made("clCreateKernel", kernel, status)?);
        }
        Ok(opened)
    }
}

/// Bytes that go to or come from a device at a time.
pub(crate) const STAGING: usize = 1 << 20;

/// A device with a queue of commands, and the kernels of a program.
pub(super) struct OpenQueue {
    listed: ListedDevice,
    context: Object,
    queue: Object,
    program: Object,
    kernels: Vec<Object>,
    staging: Vec<u8>,
    clock: Clock,
    limit: Duration,
    /// True after a command that did not end.
    is_lost: bool,
}

// SAFETY: as for `ListedDevice`.
unsafe impl Send for OpenQueue {}

/// Memory of a device, which [`OpenQueue::release`] frees.
pub(super) struct Memory {
    object: Object,
    pub(super) len: usize,
}

// SAFETY: as for `ListedDevice`.
unsafe impl Send for Memory {}

impl OpenQueue {
    fn build(&mut self) -> Result<(), CallError> {
        let Functions { build_program, build_info, .. } = self.listed.functions;
        let options = c"-cl-std=CL1.2".as_ptr();
        // SAFETY: the program and device of this context, options with their end, and no callback.
        let status = unsafe {
            build_program(self.program, 1, &self.listed.device, options, null_mut(), null_mut())
        };
        if status >= 0 {
            return Ok(());
        }
        const LOG: u32 = 0x1183;
        let mut log = vec![0u8; 1 << 16];
        let len = log.len();
        let to = log.as_mut_ptr().cast();
        // SAFETY: room for as many bytes as is said.
        unsafe { build_info(self.program, self.listed.device, LOG, len, to, null_mut()) };
        let log = String::from_utf8_lossy(&log);
        let line = log.lines().find(|line| line.contains("error")).unwrap_or(&log);
        let line = line.trim_matches(|c: char| c == '\0' || c.is_whitespace());
        Err(CallError::Build(format!("status {status}: {line}")))
    }

    /// Allocates memory.
    pub(super) fn allocate(&mut self, len: usize) -> Result<Memory, CallError> {
        const READ_WRITE: u64 = 1;
        let create = self.listed.functions.create_buffer;
        let mut status = 0;
        // SAFETY: the context lives as long as `self`; no memory of the host is passed.
        let object = unsafe { create(self.context, READ_WRITE, len, null_mut(), &mut status) };
        Ok(Memory { object: made("clCreateBuffer", object, status)?, len })
    }

    /// Frees memory.
    pub(super) fn release(&mut self, memory: Memory) {
        if !self.is_lost {
            // SAFETY: it is released once, as this takes it, and no command uses it.
            unsafe { (self.listed.functions.release_buffer)(memory.object) };
        }
    }

    /// Writes bytes, and waits until they are there.
    ///
    /// # Panics
    ///
    /// If they are not within the memory.
    pub(super) fn write(&mut self, to: &Memory, at: usize, bytes: &[u8]) -> Result<(), CallError> {
        assert!(at <= to.len && bytes.len() <= to.len - at, "bytes within the memory");
        for (chunk, at) in bytes.chunks(STAGING).zip((at..).step_by(STAGING)) {
            self.ready()?;
            self.staging[..chunk.len()].copy_from_slice(chunk);
            let enqueue = self.listed.functions.write;
            let from = self.staging.as_ptr().cast();
            let queue = self.queue;
            let len = chunk.len();
            let mut event = null_mut();
            // SAFETY: `len` bytes of the staging buffer, which nobody changes or frees before the command has ended,
            // and as many in the memory, as was checked.
            let status =
                unsafe { enqueue(queue, to.object, 0, at, len, from, 0, null(), &mut event) };
            passed("clEnqueueWriteBuffer", status)?;
            self.finish(event)?;
        }
        Ok(())
    }

    /// Reads bytes.
    ///
    /// # Panics
    ///
    /// If they are not within the memory.
    pub(super) fn read(
        &mut self,
        from: &Memory,
        at: usize,
        bytes: &mut [u8],
    ) -> Result<(), CallError> {
        assert!(at <= from.len && bytes.len() <= from.len - at, "bytes within the memory");
        for (chunk, at) in bytes.chunks_mut(STAGING).zip((at..).step_by(STAGING)) {
            self.ready()?;
            let enqueue = self.listed.functions.read;
            let to = self.staging.as_mut_ptr().cast();
            let queue = self.queue;
            let len = chunk.len();
            let mut event = null_mut();
            // SAFETY: as in `write`, with the directions exchanged.
            let status =
                unsafe { enqueue(queue, from.object, 0, at, len, to, 0, null(), &mut event) };
            passed("clEnqueueReadBuffer", status)?;
            self.finish(event)?;
            chunk.copy_from_slice(&self.staging[..len]);
        }
        Ok(())
    }

    /// Runs jobs of one kernel, whose words it puts into the last memory, and waits for their end.
    ///
    /// # Panics
    ///
    /// If a job is not within the memory of weights, inputs and outputs.
    pub(super) fn launch(
        &mut self,
        jobs: &[DeviceJob],
        memories: [&Memory; 4],
    ) -> Result<(), CallError> {
        let Some(kernel) = jobs.first().map(|job| job.kernel) else { return Ok(()) };
        let [weights, inputs, outputs, words] = memories;
        let mut bytes = Vec::with_capacity(jobs.len() * JOB_BYTES);
        let mut rows = 0;
        for job in jobs {
            let is_within = job.is_within(weights.len, inputs.len, outputs.len);
            assert!(job.kernel == kernel && is_within, "a job within the memory");
            job.write(&mut bytes);
            rows = rows.max(job.rows);
        }
        self.write(words, 0, &bytes)?;
        self.ready()?;
        let Functions { set_argument, launch, .. } = self.listed.functions;
        let kernel = self.kernels[kernel as usize];
        for (index, memory) in (0..).zip(memories) {
            let object = &raw const memory.object;
            // SAFETY: the argument is a buffer, whose handle is copied.
            let status = unsafe { set_argument(kernel, index, size_of::<Object>(), object.cast()) };
            passed("clSetKernelArg", status)?;
        }
        let threads = [32, rows.next_multiple_of(ROWS) as usize, jobs.len()];
        let group = [32, ROWS as usize, 1];
        let threads = threads.as_ptr();
        let group = group.as_ptr();
        let queue = self.queue;
        let mut event = null_mut();
        // SAFETY: all arguments are set, and both shapes have three dimensions. All that a kernel reads and writes for
        // these jobs is within its buffers, whatever the bytes of the weights: jobs are made for checked matrices.
        let status =
            unsafe { launch(queue, kernel, 3, null(), threads, group, 0, null(), &mut event) };
        passed("clEnqueueNDRangeKernel", status)?;
        self.finish(event)
    }

    /// Refuses commands after one that did not end.
    fn ready(&self) -> Result<(), CallError> {
        if self.is_lost { Err(CallError::TimedOut) } else { Ok(()) }
    }

    /// Waits for the end of a command.
    fn finish(&mut self, event: Object) -> Result<(), CallError> {
        const STATUS: u32 = 0x11d3;
        /// Questions to the driver before the thread sleeps in between.
        const EAGER: u32 = 2000;
        let Functions { flush, event_info, release_event, .. } = self.listed.functions;
        // SAFETY: the queue of this context.
        let flushed = unsafe { flush(self.queue) };
        let begun = self.clock.now();
        let mut asked = 0;
        let status = loop {
            let mut status: Status = 0;
            // SAFETY: an event that is not yet released, and a status of four bytes.
            let got = unsafe {
                event_info(event, STATUS, size_of::<Status>(), (&raw mut status).cast(), null_mut())
            };
            // A command that is not known to have ended may still use the staging buffer.
            let is_known = got >= 0 && flushed >= 0;
            if is_known && status <= 0 {
                break status;
            }
            if !is_known || self.clock.now().saturating_sub(begun) > self.limit {
                self.is_lost = true;
                std::mem::forget(std::mem::take(&mut self.staging));
                return Err(match is_known {
                    true => CallError::TimedOut,
                    false => CallError::Failed { call: "clGetEventInfo", status: got.min(flushed) },
                });
            }
            asked += 1;
            match asked < EAGER {
                true => std::thread::yield_now(),
                false => self.clock.sleep(Duration::from_micros(50)),
            }
        };
        // SAFETY: it is released once.
        unsafe { release_event(event) };
        passed("the command", status)
    }
}

impl Drop for OpenQueue {
    fn drop(&mut self) {
        if self.is_lost {
            return;
        }
        let functions = self.listed.functions;
        // SAFETY: each object is released once, and none is used by a command. Those that were not made are null.
        unsafe {
            for kernel in self.kernels.drain(..) {
                (functions.release_kernel)(kernel);
            }
            if !self.program.is_null() {
                (functions.release_program)(self.program);
            }
            if !self.queue.is_null() {
                (functions.release_queue)(self.queue);
            }
            if !self.context.is_null() {
                (functions.release_context)(self.context);
            }
        }
    }
}
