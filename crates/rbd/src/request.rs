//! Reads, writes and flushes: begun on any thread, completed on one of librbd's.
#![expect(
    unsafe_code,
    reason = "librbd reads and writes memory by address, and calls back with a pointer: see `Request`"
)]

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::Arc;

use lunway_block::{BlockError, Buf, Io, SharedBuf};
use tokio::sync::oneshot;

use crate::client::Client;
use crate::library::{Completion, ImageHandle, Library};
use crate::pending::{Outcome, Payload};

/// `RBD_WRITE_ZEROES_FLAG_THICK_PROVISION`: the space stays allocated.
pub(crate) const THICK: c_int = 1;
/// Zeroes that are written at a time, bytes: a quarter of an object of the usual size.
const ZEROES: u64 = 1 << 20;

/// An operation under way. Its memory is in here, whose only owner is the completion: a caller that waits no longer
/// drops the receiving end of the answer, and the memory stays until librbd has called back, also where the operation
/// was given up before.
struct Request {
    client: Arc<Client>,
    payload: Payload,
    /// Among the client's pending ones.
    number: u64,
}

/// Called by librbd once for each operation that was begun.
unsafe extern "C" fn completed(completion: Completion, argument: *mut c_void) {
    // SAFETY: the argument is the request that `begin` has leaked for this completion, which is called once.
    let request = unsafe { Box::from_raw(argument.cast::<Request>()) };
    let Request { client, payload, number } = *request;
    let library = client.library();
    // SAFETY: the completion is valid until it is released, which is done here once; librbd keeps a reference of its
    // own for as long as it needs.
    let result = unsafe {
        let result = (library.rbd_aio_get_return_value)(completion);
        (library.rbd_aio_release)(completion);
        result
    };
    if result < 0 {
        client.failed(result as i32);
    }
    // Wakes the task, if it is not awake for another answer. Without a receiver the memory goes here.
    if let Some(answer) = client.pending.take(number) {
        let _ = answer.send((result, payload));
    }
    client.gate.leave();
}

/// Begins an operation: `call` hands it to librbd, with the image, the completion and the address of the payload's
/// memory. The answer is what librbd returned, and the payload.
fn begin(
    client: &Arc<Client>,
    mut payload: Payload,
    call: impl FnOnce(&Library, ImageHandle, Completion, *mut u8) -> c_int,
) -> Result<oneshot::Receiver<Outcome>, BlockError> {
    client.usable()?;
    if !client.gate.enter() {
        // One that was fenced in between is closed, too.
        return Err(client.usable().err().unwrap_or_else(|| client.closed()));
    }
    // The memory does not move with its handle, which goes into the request below and is not used until the completion.
    let memory = match &mut payload {
        Payload::None => ptr::null_mut(),
        Payload::Fill(buf) => buf.as_mut_ptr(),
        Payload::Data(data) => data.as_ptr().cast_mut(),
    };
    let (answer, receiver) = oneshot::channel();
    let number = client.pending.add(answer);
    let request = Box::new(Request { client: Arc::clone(client), payload, number });
    let argument = Box::into_raw(request).cast::<c_void>();
    let (library, mut completion) = (client.library(), ptr::null_mut());
    // SAFETY: the argument is valid for `completed` until that was called, and the completion is filled.
    let made = unsafe { (library.rbd_aio_create_completion)(argument, completed, &mut completion) };
    let begun = if made < 0 { made } else { call(library, client.image.handle(), completion, memory) };
    if begun >= 0 {
        return Ok(receiver);
    }
    // SAFETY: an operation that was not begun is not completed: request and completion are still this function's.
    let request = unsafe {
        if made >= 0 {
            (library.rbd_aio_release)(completion);
        }
        Box::from_raw(argument.cast::<Request>())
    };
    drop(request);
    client.pending.take(number);
    client.failed(begun);
    let error = client.meaning(begun, 0, 0);
    client.gate.leave();
    Err(error)
}

/// Fills a buffer from `offset`.
pub(crate) fn read(client: &Arc<Client>, offset: u64, buf: Buf) -> Io<Result<Buf, BlockError>> {
    let len = buf.len();
    let begun = begin(client, Payload::Fill(buf), |library, image, completion, memory| {
        // SAFETY: the image is open (the gate), the memory has that length and is the request's until the completion.
        unsafe { (library.rbd_aio_read)(image, offset, len, memory.cast(), completion) }
    });
    let (receiver, client) = match begun {
        Ok(receiver) => (receiver, Arc::clone(client)),
        Err(error) => return Io::err(error),
    };
    Io::pending(async move {
        match receiver.await {
            Ok((read, Payload::Fill(buf))) if read == len as isize => Ok(buf),
            // Less than was asked for: the image has become smaller meanwhile.
            Ok((read, _)) if read >= 0 => Err(client.meaning(-libc::EINVAL, offset, len as u64)),
            Ok((error, _)) => Err(client.meaning(error as i32, offset, len as u64)),
            Err(_) => Err(client.late()),
        }
    })
}

/// Writes `data` at `offset`.
pub(crate) fn write(client: &Arc<Client>, offset: u64, data: SharedBuf) -> Io<Result<(), BlockError>> {
    let len = data.len();
    let begun = begin(client, Payload::Data(data), |library, image, completion, memory| {
        // SAFETY: as for a read; the library only reads it.
        unsafe { (library.rbd_aio_write)(image, offset, len, memory.cast_const().cast(), completion) }
    });
    done(client, begun, offset, len as u64)
}

/// Makes a range read as zeroes: whole objects are removed, parts of them are punched out by the OSD, unless `flags`
/// say that the space stays. A library that cannot do that has zeroes written.
pub(crate) fn write_zeroes(
    client: &Arc<Client>,
    offset: u64,
    len: u64,
    flags: c_int,
) -> Io<Result<(), BlockError>> {
    let Some(call) = client.library().rbd_aio_write_zeroes else {
        let zeroes = Buf::zeroed(len.min(ZEROES) as usize).freeze();
        let client = Arc::clone(client);
        return Io::pending(async move {
            for at in (0..len).step_by(ZEROES as usize) {
                let piece = zeroes.slice(0..(len - at).min(ZEROES) as usize);
                write(&client, offset + at, piece).await?;
            }
            Ok(())
        });
    };
    let begun = begin(client, Payload::None, |_, image, completion, _| {
        // SAFETY: the image is open (the gate), no memory is passed.
        unsafe { call(image, offset, len as usize, completion, flags, 0) }
    });
    done(client, begun, offset, len)
}

/// Makes durable what was written, as far as librbd keeps anything.
pub(crate) fn flush(client: &Arc<Client>) -> Io<Result<(), BlockError>> {
    let begun = begin(client, Payload::None, |library, image, completion, _| {
        // SAFETY: as above.
        unsafe { (library.rbd_aio_flush)(image, completion) }
    });
    done(client, begun, 0, 0)
}

fn done(
    client: &Arc<Client>,
    begun: Result<oneshot::Receiver<Outcome>, BlockError>,
    offset: u64,
    len: u64,
) -> Io<Result<(), BlockError>> {
    let (receiver, client) = match begun {
        Ok(receiver) => (receiver, Arc::clone(client)),
        Err(error) => return Io::err(error),
    };
    Io::pending(async move {
        match receiver.await {
            Ok((answer, _)) if answer >= 0 => Ok(()),
            Ok((error, _)) => Err(client.meaning(error as i32, offset, len)),
            Err(_) => Err(client.late()),
        }
    })
}
