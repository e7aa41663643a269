//! Every back end and every decorator through its name.

use lunway_block::spec::DeviceSpec;
use lunway_block::{BlockError, Buf, Caching, Durability};
use lunway_device::{DeviceOpenError, OpenOptions, Opened, create_file, open};

async fn opened(text: &str, options: &OpenOptions) -> Result<Opened, DeviceOpenError> {
    open(&DeviceSpec::parse(text)?, options).await
}

async fn refusal(text: &str, options: &OpenOptions) -> String {
    match opened(text, options).await {
        Ok(_) => panic!("{text} was opened"),
        Err(error) => error.to_string(),
    }
}

#[tokio::test]
async fn memory_has_the_size_of_its_name_and_the_sector_that_was_asked_for() {
    let options = OpenOptions { sector: Some(4096), ..OpenOptions::default() };
    for text in ["ram:1M", "null:1M", "stats:delay:1us:rate:1G:ram:1M", "fault:read=0.5:null:1M"] {
        let geometry = opened(text, &options).await.unwrap().device.geometry();
        assert_eq!((geometry.size, geometry.logical_sector), (1 << 20, 4096), "{text}");
    }
}

#[tokio::test]
async fn cache_none_in_a_name_opens_the_file_past_the_page_cache() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk.img");
    create_file(&path, 1 << 20).unwrap();
    let options = OpenOptions { sector: Some(4096), ..OpenOptions::default() };
    for (cache, is_past) in [("", false), ("?cache=none", true)] {
        match opened(&format!("raw:{}{cache}", path.display()), &options).await {
            Ok(disk) => {
                assert_eq!(disk.device.caching() == Caching::PastPageCache, is_past);
                disk.close().await.unwrap();
            }
            Err(error) if cache.is_empty() => panic!("{error}"),
            Err(error) => lunway_foreign::machine_lacks(&format!("O_DIRECT here: {error}")),
        }
    }
}

#[tokio::test]
async fn a_file_is_created_once_and_keeps_what_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk.img");
    create_file(&path, 1 << 20).unwrap();
    assert!(create_file(&path, 1 << 20).unwrap_err().to_string().contains("disk.img"), "a file is never cut");
    let text = format!("file:{}", path.display());
    let disk = opened(&text, &OpenOptions::default()).await.unwrap();
    disk.device.write(4096, Buf::copy_of(&[7; 512]).freeze(), Durability::Stable).await.unwrap();
    disk.close().await.unwrap();
    let disk = opened(&text, &OpenOptions::default()).await.unwrap();
    assert_eq!(disk.device.geometry().size, 1 << 20);
    assert_eq!(&disk.device.read(4096, Buf::zeroed(512)).await.unwrap()[..], [7; 512]);
}

#[tokio::test]
async fn read_only_holds_however_it_was_asked_for() {
    let option = OpenOptions { read_only: true, ..OpenOptions::default() };
    for (text, options) in [("ram:1M", option), ("stats:readonly:ram:1M", OpenOptions::default())] {
        let disk = opened(text, &options).await.unwrap();
        assert!(disk.device.geometry().read_only);
        let refused = disk.device.write(0, Buf::zeroed(512).freeze(), Durability::Volatile).await;
        assert_eq!(refused, Err(BlockError::ReadOnly), "{text}");
    }
}

#[tokio::test]
async fn decorators_are_around_the_device_in_the_order_of_their_names() {
    let disk = opened("fault:write:ram:1M", &OpenOptions::default()).await.unwrap();
    assert!(disk.device.write(0, Buf::zeroed(512).freeze(), Durability::Volatile).await.is_err());
    // Outside, read-only answers before the fault is met.
    let disk = opened("readonly:fault:write:ram:1M", &OpenOptions::default()).await.unwrap();
    let refused = disk.device.write(0, Buf::zeroed(512).freeze(), Durability::Volatile).await;
    assert_eq!(refused, Err(BlockError::ReadOnly));
}

#[tokio::test]
async fn a_vhdx_that_is_none_is_refused_in_one_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("backup.vhdx");
    std::fs::write(&path, [0; 4096]).unwrap();
    let path = path.to_str().unwrap();
    let message = refusal(path, &OpenOptions::default()).await;
    assert_eq!(message, format!("cannot open {path}: not a VHDX file: it does not begin with \"vhdxfile\""));
    let direct = OpenOptions { direct: true, ..OpenOptions::default() };
    let message = refusal(path, &direct).await;
    assert!(message.ends_with("that is possible for raw images alone"), "{message}");
}

#[tokio::test]
async fn a_missing_file_and_a_refused_connection_are_named() {
    let message = refusal("/nonexistent/disk.img", &OpenOptions::default()).await;
    assert!(message.contains("/nonexistent/disk.img"), "{message}");
    // A port that was free a moment ago and that nobody listens on.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let url = format!("iscsi://user%hunter2@127.0.0.1:{port}/iqn.2026-11.io.lunway:disk/0");
    let message = refusal(&url, &OpenOptions::default()).await;
    assert!(message.contains(&format!("127.0.0.1:{port}")) && !message.contains("hunter2"), "{message}");
}

#[tokio::test]
async fn an_impossible_sector_is_refused() {
    let options = OpenOptions { sector: Some(513), ..OpenOptions::default() };
    let message = refusal("ram:1M", &options).await;
    assert!(message.contains("ram:1M") && message.contains("513"), "{message}");
}

#[tokio::test]
async fn several_paths_are_refused_in_sentences_without_secrets() {
    let options = OpenOptions::default();
    let message =
        refusal("iscsi://u%hunter2@127.0.0.1/iqn.2026-11.com.example:disk/0?plan=best", &options).await;
    assert!(message.contains("`best` is not a plan") && !message.contains("hunter2"), "{message}");
    let message = refusal("paths:/nonexistent/san.toml", &options).await;
    assert!(message.contains("cannot read /nonexistent/san.toml"), "{message}");
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let lane = format!("lane=127.0.0.2>127.0.0.1:{port}");
    let url = format!("iscsi://u%hunter2hunter2@127.0.0.1:{port}/iqn.2026-11.com.example:disk/0?{lane}");
    let message = refusal(&url, &options).await;
    assert!(message.contains("no lane could be connected: 127.0.0.2 > 127.0.0.1"), "{message}");
    assert!(!message.contains("hunter2"), "{message}");
}

#[tokio::test]
async fn an_image_of_ceph_without_a_cluster_says_what_is_missing() {
    // Where librbd is not installed, that; else the configuration.
    let message =
        refusal("readonly:rbd:pool/image?conf=/nonexistent/ceph.conf", &OpenOptions::default()).await;
    let library = message.contains("librados2 and librbd1");
    assert!(library || message.contains("/nonexistent/ceph.conf"), "{message}");
}
