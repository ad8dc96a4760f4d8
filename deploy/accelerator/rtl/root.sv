// floor(sqrt(square)) of 62 bits, one bit of the root a stage: 31 cycles and one more, one result a cycle.
module root (
    input  logic        clock,
    input  logic [61:0] square,
    output logic [30:0] found
); /* verilator no_inline_module */
    logic [61:0] rest  [0:31];
    logic [30:0] roots [0:31];
    integer i;
    logic [61:0] trial;
    always_ff @(posedge clock) begin
        rest[0] <= square;
        roots[0] <= 31'd0;
        for (i = 0; i < 31; i = i + 1) begin
            trial = (62'(roots[i]) << (31 - i)) + (62'd1 << (60 - 2 * i));
            if (rest[i] >= trial) begin
                rest[i+1] <= rest[i] - trial;
                roots[i+1] <= roots[i] | (31'd1 << (30 - i));
            end else begin
                rest[i+1] <= rest[i];
                roots[i+1] <= roots[i];
            end
        end
    end
    assign found = roots[31];
endmodule
