package machine

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/doctor/rules/host"
)

// monotonic returns the present time of the kernel log's clock, in microseconds.
func monotonic() (int64, error) {
	var now unix.Timespec
	err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now)
	return now.Nano() / 1000, err
}

const (
	maxLog     = 200     // the maximum number of lines of the kernel's log in the facts
	maxLogLine = 400     // the maximum length of a line, in bytes
	maxRecords = 1 << 20 // the maximum number of records that are read
	maxRecord  = 8 << 10 // the maximum size of a record, in bytes (CONSOLE_EXT_LOG_MAX)
)

// KernelLog returns the lines of the last day that report trouble with a NIC. It does not block. A record of /dev/kmsg
// is "priority,sequence,microseconds,flags;text". Only the first line of a record is used
// (Documentation/ABI/testing/dev-kmsg).
func (c *Reader) KernelLog(ctx context.Context) ([]string, error) {
	fd, err := unix.Open(c.HostPath("dev/kmsg"), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open: %w", err)
	}
	defer unix.Close(fd)
	now, err := monotonic()
	if err != nil {
		return nil, err
	}
	oldest := now - (24 * time.Hour).Microseconds()
	var found []string
	record := make([]byte, maxRecord)
	for range maxRecords {
		n, err := unix.Read(fd, record)
		switch {
		case errors.Is(err, unix.EPIPE), errors.Is(err, unix.EINTR): // EPIPE: the kernel has overwritten old records
			continue
		case errors.Is(err, unix.EAGAIN), err == nil && n == 0:
			return found[max(0, len(found)-maxLog):], nil
		case err != nil:
			return nil, err
		case ctx.Err() != nil:
			return nil, ctx.Err()
		}
		if line := logLine(string(record[:n]), oldest); line != "" {
			found = append(found, line)
		}
		if len(found) > 10*maxLog {
			found = append([]string(nil), found[len(found)-maxLog:]...)
		}
	}
	return nil, errors.New("the kernel's log does not end")
}

// logLine returns the text of a record. It returns "" if the record is older than oldest, or if it
// reports no trouble.
func logLine(record string, oldest int64) string {
	head, text, ok := strings.Cut(record, ";")
	fields := strings.Split(head, ",")
	if !ok || len(fields) < 3 {
		return ""
	}
	if stamp, err := strconv.ParseInt(fields[2], 10, 64); err != nil || stamp < oldest {
		return ""
	}
	text, _, _ = strings.Cut(text, "\n")
	if !host.KernelTrouble(text) {
		return ""
	}
	return text[:min(len(text), maxLogLine)]
}
