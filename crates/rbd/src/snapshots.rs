//! Snapshots of an image, made and removed by name.

use std::sync::Arc;

use lunway_block::BlockError;
use lunway_block::spec::RbdName;

use crate::RbdOpenError;
use crate::cluster::Cluster;
use crate::connection::Connection;
use crate::image::Image;
use crate::lane::Lane;
use crate::library::Library;
use crate::options::RbdOptions;

/// An image that is open for its snapshots alone: without its lock, so beside a client that writes, which then makes
/// and removes them for this one.
///
/// An image whose lock is free lends it to this one for as long as that takes, so a device that is to be written is
/// opened after this was dropped.
pub struct RbdSnapshots {
    lane: Lane,
    name: RbdName,
    /// `None`: being dropped.
    image: Option<Arc<Image>>,
    identity: String,
}

impl RbdSnapshots {
    /// Opens an image, whatever snapshot `name` has in it, on a thread.
    ///
    /// # Errors
    ///
    /// [`RbdOpenError`]: the library or the image is missing, or what the cluster said.
    pub async fn open(name: &RbdName, options: &RbdOptions) -> Result<Self, RbdOpenError> {
        let name = RbdName { snapshot: None, break_lock: None, ..name.clone() };
        let failed = |doing: &str, source| RbdOpenError::Failed {
            name: name.to_string(),
            doing: doing.to_owned(),
            source,
        };
        let lane = Lane::start().map_err(|source| failed("starting a thread", source))?;
        let (there, path) = (name.clone(), options.library.clone());
        let opening = lane.io(move || {
            let open = || -> Result<_, RbdOpenError> {
                let library = Library::load(path.as_deref())?;
                let cluster = Cluster::open(Connection::of(library, &there, false)?, &there)?;
                let image = Image::open(cluster, &there, false)?;
                let id =
                    image.id().map_err(|errno| RbdOpenError::failed(errno, &there, "asking for its id"))?;
                let identity = image.place(&there, &id);
                Ok((Arc::new(image), identity))
            };
            Ok(open())
        });
        let lost = |error: BlockError| RbdOpenError::Shape { name: name.to_string(), why: error.to_string() };
        let (image, identity) = opening.await.map_err(lost)??;
        Ok(Self { lane, name, image: Some(image), identity })
    }

    /// What the image is: cluster, pool, namespace and id. A copy, a clone or a later image of the name has another.
    pub fn identity(&self) -> &str {
        &self.identity
    }

    /// Makes a snapshot, of what was acknowledged before.
    ///
    /// # Errors
    ///
    /// What the cluster said, or the client that has the lock.
    pub async fn create(&self, snapshot: &str) -> Result<(), RbdOpenError> {
        let wanted = snapshot.to_owned();
        self.carry_out("making a snapshot", move |image| image.create_snapshot(&wanted)).await
    }

    /// Removes a snapshot. `false`: there is none of that name, or it has another number than the one that is given.
    ///
    /// # Errors
    ///
    /// What the cluster said, or the client that has the lock.
    pub async fn remove(&self, snapshot: &str, number: Option<u64>) -> Result<bool, RbdOpenError> {
        let unwanted = snapshot.to_owned();
        self.carry_out("removing a snapshot", move |image| {
            let is_it = number.map_or(Ok(true), |number| Ok(image.snapshot_id(&unwanted)? == number));
            let removed = match is_it {
                Ok(true) => image.remove_snapshot(&unwanted).map(|()| true),
                other => other,
            };
            if removed == Err(-libc::ENOENT) { Ok(false) } else { removed }
        })
        .await
    }

    /// Closes the image, which gives the lock back if it was lent. A process that ends without this leaves the lock as
    /// one that has died.
    ///
    /// # Errors
    ///
    /// What the cluster said.
    pub async fn close(mut self) -> Result<(), RbdOpenError> {
        let image = self.image.take();
        let closing = self.lane.io(move || Ok(image.as_deref().map_or(Ok(()), |image| image.shut(false))));
        let lost =
            |error: BlockError| RbdOpenError::Shape { name: self.name.to_string(), why: error.to_string() };
        closing
            .await
            .map_err(lost)?
            .map_err(|errno| RbdOpenError::failed(errno, &self.name, "closing the image"))
    }

    async fn carry_out<T: Send + Unpin + 'static>(
        &self,
        doing: &'static str,
        job: impl FnOnce(&Image) -> Result<T, i32> + Send + 'static,
    ) -> Result<T, RbdOpenError> {
        let (image, name) = (self.image.clone(), self.name.clone());
        let carry_out = move || {
            let failed = |errno| RbdOpenError::failed(errno, &name, doing);
            let Some(image) = image.as_deref() else { return Ok(Err(failed(-libc::EBADF))) };
            Ok(job(image).map_err(|errno| image.reason(failed(errno), &name)))
        };
        let lost =
            |error: BlockError| RbdOpenError::Shape { name: self.name.to_string(), why: error.to_string() };
        self.lane.io(carry_out).await.map_err(lost)?
    }
}

impl Drop for RbdSnapshots {
    fn drop(&mut self) {
        let image = self.image.take();
        // It is closed where its calls were made, behind the last of them.
        self.lane.run(move || drop(image));
    }
}
