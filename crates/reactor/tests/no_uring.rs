//! Cores where io_uring is forbidden. Alone in a program of its own: what is forbidden to a process stays so.
#![allow(unsafe_code)]

use pumice_reactor::{
    Config, IoBuf, KernelInterface, ListenOptions, Listener, OpenOptions, Stream, WriteSync, block_on_with,
    driver_name, file::File, spawn, start,
};
use std::io::ErrorKind;
use std::sync::{Arc, mpsc};

/// Has `io_uring_setup` and its like fail with EPERM for this thread and those that it starts, as Docker's default seccomp
/// profile does.
fn forbid_io_uring() {
    const CALLS: [libc::c_long; 3] =
        [libc::SYS_io_uring_setup, libc::SYS_io_uring_enter, libc::SYS_io_uring_register];
    let statement = |code: u32, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let mut filter = vec![statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0)]; // the call's number
    for (index, call) in CALLS.iter().enumerate() {
        let jump = statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, *call as u32);
        filter.push(libc::sock_filter { jt: (CALLS.len() - index) as u8, ..jump });
    }
    filter.push(statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW));
    filter.push(statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32));
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: takes no memory.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }, 0);
    // SAFETY: the kernel copies the program, which is as long as it says.
    let result = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

async fn serves_and_stores() {
    let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap(), ListenOptions::default()).await.unwrap();
    let mut near = Stream::connect(listener.local_addr()).await.unwrap();
    let echo = spawn(async move {
        let (mut far, _) = listener.accept().await.unwrap();
        let came = far.recv().await.unwrap().to_vec();
        far.send_one(came).await.0.unwrap();
    });
    near.send_one(b"a message".to_vec()).await.0.unwrap();
    assert_eq!(&*near.recv().await.unwrap(), b"a message");
    echo.await.unwrap();

    let dir = tempfile::tempdir().unwrap();
    let options = OpenOptions { create: true, direct: true, ..OpenOptions::default() };
    let file = File::open(&dir.path().join("file"), &options).await.unwrap();
    file.allocate(0, 1 << 20).await.unwrap();
    file.write_at(IoBuf::copy_of(&[7; 8192]).freeze(), 4096, WriteSync::Durable).await.unwrap();
    file.sync_data().await.unwrap();
    let (read, buf) = file.read_at(IoBuf::for_read(4096), 8192).await;
    assert_eq!((read.unwrap(), &buf[..]), (4096, &[7; 4096][..]));
}

#[test]
fn cores_go_on_by_epoll_where_they_may_and_say_why() {
    forbid_io_uring();
    let by = |interface| Config { cores: 2, interface, ..Config::default() };
    let (tell, told) = mpsc::channel();
    let init = move |core: pumice_reactor::CoreId| {
        let tell = tell.clone();
        Box::pin(async move {
            if core.0 == 0 {
                serves_and_stores().await;
            }
            tell.send(driver_name()).unwrap();
        }) as pumice_reactor::LocalBoxFuture<'static, ()>
    };
    let running = start(&by(KernelInterface::Any), Arc::new(init.clone())).unwrap();
    let why = running.uring_error().expect("it is forbidden").to_string();
    assert!(why.contains("kernel.io_uring_disabled") && why.contains("seccomp"), "{why}");
    running.join().unwrap();
    assert_eq!(told.try_iter().collect::<Vec<_>>(), ["epoll", "epoll"]);

    let refused = start(&by(KernelInterface::Uring), Arc::new(init));
    assert_eq!(refused.err().expect("io_uring was asked for").kind(), ErrorKind::PermissionDenied);
    block_on_with(&by(KernelInterface::Any), serves_and_stores()).unwrap();
    assert!(told.try_iter().next().is_none(), "a core ran without what was asked for");
}
