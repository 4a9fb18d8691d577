// An echo server and its clients, using only Go's standard library. The argument is an address of this
// host; each client moves a megabyte there and back in all.
package main

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"
)

const clients, size = 5, 200000

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func echo(listener net.Listener) {
	for {
		peer, err := listener.Accept()
		check(err)
		go func() {
			_, err := io.Copy(struct{ io.Writer }{peer}, struct{ io.Reader }{peer})
			check(err)
			check(peer.Close())
		}()
	}
}

func client(address string, seed byte, done chan<- bool) {
	connection, err := net.Dial("tcp", address)
	check(err)
	sent := bytes.Repeat([]byte{seed}, size)
	go func() {
		_, err := connection.Write(sent)
		check(err)
		check(connection.(*net.TCPConn).CloseWrite())
	}()
	got, err := io.ReadAll(connection)
	check(err)
	check(connection.Close())
	done <- bytes.Equal(got, sent)
}

// A blocked read ends at its deadline, and the connection stays usable.
func deadline(address string) bool {
	connection, err := net.Dial("tcp", address)
	check(err)
	check(connection.SetReadDeadline(time.Now().Add(50 * time.Millisecond)))
	_, err = connection.Read(make([]byte, 1))
	timeout, ok := err.(net.Error)
	check(connection.SetReadDeadline(time.Time{}))
	fmt.Fprint(connection, "x")
	byte := make([]byte, 1)
	_, read := io.ReadFull(connection, byte)
	check(read)
	check(connection.Close())
	return ok && timeout.Timeout() && byte[0] == 'x'
}

func web(host string) bool {
	listener, err := net.Listen("tcp", host+":0")
	check(err)
	content := bytes.Repeat([]byte("content "), size/8)
	go http.Serve(listener, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, err := w.Write(content)
		check(err)
	}))
	for range [3]int{} {
		response, err := http.Get("http://" + listener.Addr().String() + "/")
		check(err)
		got, err := io.ReadAll(response.Body)
		check(err)
		check(response.Body.Close())
		if !bytes.Equal(got, content) {
			return false
		}
	}
	return true
}

func main() {
	listener, err := net.Listen("tcp", os.Args[1]+":0")
	check(err)
	go echo(listener)
	address := listener.Addr().String()
	done := make(chan bool)
	for seed := byte(0); seed < clients; seed++ {
		go client(address, seed, done)
	}
	well := true
	for range [clients]int{} {
		well = <-done && well
	}
	if !well || !deadline(address) || !web(os.Args[1]) {
		fmt.Fprintln(os.Stderr, "not all is well")
		os.Exit(1)
	}
	fmt.Println("all is well")
}
