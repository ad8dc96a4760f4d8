// Plays a script on the accelerator: the host's part of its life, and the proof that it computes what the model says.
//   W memory bank address line    write a line          C memory bank address line    compare a line
//   D index word                  set a word of a job   J cycles                      run the job, compare its cycles
`timescale 1ns / 1ns
module test_bench #(
    parameter int CORES = 2,
    parameter int SIDE = 16,
    parameter int STREAM_BITS = 9,
    parameter int PARAMETER_LINES = 32768,
    parameter int VECTOR_LINES = 16384
);
    logic clock = 1'b0, reset = 1'b1, host_write = 1'b0, word_write = 1'b0, start = 1'b0;
    logic [2:0] host_memory, host_bank;
    logic [19:0] host_address;
    logic [SIDE*32-1:0] host_line, wanted;
    wire [SIDE*32-1:0] host_read;
    logic [4:0] word_index;
    logic [31:0] word, expected, where;
    wire done;
    wire [31:0] cycles;
    always #1 clock = ~clock;

    accelerator #(
        .CORES(CORES), .SIDE(SIDE), .STREAM_BITS(STREAM_BITS), .PARAMETER_LINES(PARAMETER_LINES),
        .VECTOR_LINES(VECTOR_LINES), .WEIGHT_IMAGE("weights.hex")
    ) device (
        .clock(clock), .reset(reset), .host_write(host_write), .host_memory(host_memory), .host_bank(host_bank),
        .host_address(host_address), .host_line(host_line), .host_read(host_read), .word_write(word_write),
        .word_index(word_index), .word(word), .start(start), .done(done), .cycles(cycles)
    );

    integer script, read, jobs = 0, lines = 0, wrong = 0;
    logic [7:0] operation;
    initial begin
        script = $fopen("script.txt", "r");
        if (script == 0) $fatal(1, "script.txt is missing");
        repeat (200) @(negedge clock);
        reset = 1'b0;
        while ($fscanf(script, " %c", operation) == 1) begin
            @(negedge clock);
            host_write = 1'b0;
            word_write = 1'b0;
            case (operation)
                "W": begin
                    read = $fscanf(script, "%d %d %h %h", host_memory, host_bank, host_address, host_line);
                    host_write = 1'b1;
                end
                "C": begin
                    read = $fscanf(script, "%d %d %h %h", host_memory, host_bank, host_address, wanted);
                    repeat (2) @(negedge clock);
                    lines = lines + 1;
                    if (host_read !== wanted) begin
                        wrong = wrong + 1;
                        if (wrong < 100)
                            $display("DIFFERS job %0d memory %0d bank %0d line %h: %h, the model has %h", jobs, host_memory,
                                     host_bank, host_address, host_read, wanted);
                    end
                end
                "D": begin
                    read = $fscanf(script, "%d %h", word_index, word);
                    word_write = 1'b1;
                end
                "J": begin
                    read = $fscanf(script, "%d", expected);
                    @(negedge clock);
                    start = 1'b1;
                    @(negedge clock);
                    start = 1'b0;
                    while (!done) @(negedge clock);
                    $display("JOB %0d kind %0d cycles %0d", jobs, device.words[0][2:0], cycles);
                    if (cycles !== expected) begin
                        wrong = wrong + 1;
                        $display("DIFFERS job %0d: %0d cycles, the model has %0d", jobs, cycles, expected);
                    end
                    jobs = jobs + 1;
                end
                default: $fatal(1, "unknown operation %c", operation);
            endcase
        end
        $display("PLAYED %0d jobs, %0d lines compared, %0d differences", jobs, lines, wrong);
        $finish;
    end
endmodule
