// floor(numerator / denominator), one quotient bit a stage: QUOTIENT cycles and one more, one result a cycle.
// A quotient that does not fit in QUOTIENT bits becomes all ones.
module divider #(
    parameter int NUMERATOR = 48,
    parameter int DENOMINATOR = 32,
    parameter int QUOTIENT = 33
) (
    input  logic                   clock,
    input  logic [NUMERATOR-1:0]   numerator,
    input  logic [DENOMINATOR-1:0] denominator,
    output logic [QUOTIENT-1:0]    quotient
); /* verilator no_inline_module */
    logic [DENOMINATOR:0]   rest  [0:QUOTIENT];
    logic [QUOTIENT-1:0]    below [0:QUOTIENT];
    logic [DENOMINATOR-1:0] by    [0:QUOTIENT];
    logic                   over  [0:QUOTIENT];
    localparam int TOP = NUMERATOR > QUOTIENT ? NUMERATOR - QUOTIENT : 1;
    wire [TOP-1:0] top = TOP'(numerator >> QUOTIENT);

    integer i;
    logic [DENOMINATOR+1:0] trial;
    always_ff @(posedge clock) begin
        over[0] <= {{DENOMINATOR{1'b0}}, top} >= {{TOP{1'b0}}, denominator};
        rest[0] <= (DENOMINATOR+1)'(top);
        below[0] <= QUOTIENT'(numerator);
        by[0] <= denominator;
        for (i = 0; i < QUOTIENT; i = i + 1) begin
            trial = {rest[i], below[i][QUOTIENT-1]};
            if (trial >= {2'b00, by[i]}) begin
                rest[i+1] <= (DENOMINATOR+1)'(trial - {2'b00, by[i]});
                below[i+1] <= {below[i][QUOTIENT-2:0], 1'b1};
            end else begin
                rest[i+1] <= trial[DENOMINATOR:0];
                below[i+1] <= {below[i][QUOTIENT-2:0], 1'b0};
            end
            by[i+1] <= by[i];
            over[i+1] <= over[i];
        end
    end
    assign quotient = over[QUOTIENT] ? {QUOTIENT{1'b1}} : below[QUOTIENT];
endmodule
