package verify

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Holding is what a data directory holds.
type Holding uint8

const (
	Nothing Holding = 1 + iota // no member's data
	Data                       // a member's data, whose ID is known
	NoLog                      // files of etcd, but no log: their member never took part in a ring
	Garbled                    // a log that does not say whose it is
)

// Disk is what the data directory holds.
type Disk struct {
	Holding Holding
	Member  uint64 // whose Data
	Why     string // of Garbled, for people
}

// readDisk sees whose data a data directory holds. An error means that it could not be looked at.
func readDisk(dir string) (Disk, error) {
	entries, err := os.ReadDir(filepath.Join(dir, "member"))
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(entries) == 0 {
		return Disk{Holding: Nothing}, nil
	}
	if err != nil {
		return Disk{}, fmt.Errorf("the data directory: %w", err)
	}
	files, err := logFiles(dir)
	if err != nil {
		return Disk{}, err
	}
	if len(files) == 0 {
		return Disk{Holding: NoLog}, nil
	}
	var wrong error
	for _, file := range slices.Backward(files) {
		id, err := logOwner(file)
		if err == nil {
			return Disk{Holding: Data, Member: id}, nil
		}
		wrong = errors.Join(wrong, err)
	}
	return Disk{Holding: Garbled, Why: strings.ReplaceAll(wrong.Error(), "\n", "; ")}, nil
}

// logFiles are the files of etcd's write-ahead log, the oldest first.
func logFiles(dir string) ([]string, error) {
	files, err := filepath.Glob(filepath.Join(escape(dir), "member", "wal", "*.wal"))
	if err != nil {
		return nil, fmt.Errorf("the write-ahead log in %s: %w", dir, err)
	}
	slices.Sort(files)
	return files, nil
}

// escape makes a path mean itself to filepath.Glob.
func escape(path string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(path)
}

// The records that a file of the write-ahead log begins with, by their type.
const (
	metadataRecord = 1
	crcRecord      = 4
)

// logOwner reads the ID of the member that wrote a file of the write-ahead log. etcd begins each file
// with a checksum and its metadata; a record is its length in the lower 56 bits of 8 bytes, the
// protobuf message, and padding, whose length is in the upper 8 bits. So it has been since etcd 2.1,
// which a test holds against the etcd of today. etcd's own reader is in its server module, which is
// large.
func logOwner(file string) (uint64, error) {
	f, err := os.Open(file)
	if err != nil {
		return 0, err
	}
	defer func() { _ = f.Close() }()
	for range 2 {
		kind, data, err := record(f)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", file, err)
		}
		switch kind {
		case crcRecord:
			continue
		case metadataRecord:
			id, ok := varint(data, 1)
			if !ok || id == 0 {
				return 0, fmt.Errorf("%s: its metadata name no member", file)
			}
			return id, nil
		}
		break
	}
	return 0, fmt.Errorf("%s does not begin with the metadata of a write-ahead log", file)
}

// record reads one record's type and data.
func record(r io.Reader) (kind uint64, data []byte, err error) {
	const longest = 4096 // these records are some dozen bytes
	var frame [8]byte
	if _, err := io.ReadFull(r, frame[:]); err != nil {
		return 0, nil, fmt.Errorf("a record's length: %w", err)
	}
	field := binary.LittleEndian.Uint64(frame[:])
	size := field & (1<<56 - 1)
	if field>>63 == 1 {
		size += field >> 56 & 7
	}
	if size == 0 || size > longest {
		return 0, nil, fmt.Errorf("a record of %d bytes cannot be here", size)
	}
	message := make([]byte, size)
	if _, err := io.ReadFull(r, message); err != nil {
		return 0, nil, fmt.Errorf("a record: %w", err)
	}
	if field>>63 == 1 {
		message = message[:field&(1<<56-1)]
	}
	kind, _ = varint(message, 1)
	data, _ = bytesField(message, 3)
	return kind, data, nil
}

// varint is the value of a protobuf message's integer field.
func varint(message []byte, number uint64) (uint64, bool) {
	value, _, ok := field(message, number<<3)
	return value, ok
}

// bytesField is the value of a protobuf message's field of bytes.
func bytesField(message []byte, number uint64) ([]byte, bool) {
	_, data, ok := field(message, number<<3|2)
	return data, ok
}

// field finds a field by its tag, among integers and bytes: these messages have no other.
func field(message []byte, want uint64) (value uint64, data []byte, ok bool) {
	for len(message) > 0 {
		tag, n := binary.Uvarint(message)
		if n <= 0 {
			return 0, nil, false
		}
		message = message[n:]
		if value, n = binary.Uvarint(message); n <= 0 {
			return 0, nil, false
		}
		message, data = message[n:], nil
		switch tag & 7 {
		case 0:
		case 2:
			if value > uint64(len(message)) {
				return 0, nil, false
			}
			data, message = message[:value], message[value:]
		default:
			return 0, nil, false
		}
		if tag == want {
			return value, data, true
		}
	}
	return 0, nil, false
}
